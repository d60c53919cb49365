"""Who gets a message: routes, shared subscriptions, dead letters."""
