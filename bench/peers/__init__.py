"""What a good engineer writes by hand today, to be measured beside Tidemill on the same servers."""
