"""Authorization: rules, the identities they apply to, and limits by user. Pure."""
