"""What the parts of one live session share; spending, subscriptions, observers."""
