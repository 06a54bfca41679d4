"""Changes of sign-ins and webhooks. They are the service's, and kept in the venue for its log of commands."""
