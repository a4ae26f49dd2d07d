"""The way from a plan to a view and to the projection: what the model is sent."""
