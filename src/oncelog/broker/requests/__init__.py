"""The way from a request frame to its response: dispatch, context, delayed operations, Fetch sessions."""
