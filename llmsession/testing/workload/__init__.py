"""What stress and simulation share: the model, the tools, the subscribers."""
