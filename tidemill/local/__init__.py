"""The whole system on one machine: embedded servers, a supervisor that keeps them, and what `tidemill up` needs.

The room has three layers. `valkey` and `seaweed` know one server each: its command line, its configuration file, and
how to ask whether it is ready. `supervisor` keeps processes and knows nothing of Tidemill. `system` puts both together
with the services, and `state` holds what must survive: the lock, the credentials, the addresses of a running system.
"""
