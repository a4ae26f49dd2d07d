"""From a plan to a view to the projection: what the model is sent."""
