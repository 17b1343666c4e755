"""Logins with tokens of an identity provider (OAUTHBEARER)."""
