"""Find who gets a message: routes, subscriptions, retained messages, dead letters."""
