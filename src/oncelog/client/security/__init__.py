"""TLS and logins: read the options, load certificates and keys, get tokens."""
