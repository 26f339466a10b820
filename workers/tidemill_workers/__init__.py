"""What runs functions: the agent, its attempts, the runner child, and the environments of functions."""
