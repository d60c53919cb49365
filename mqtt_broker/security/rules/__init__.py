"""What a client may do: rules, identities and limits by user."""
