"""Values that are Avro, in columns: programs made of two schemas, and kernels that interpret them.

`schemas` has the types, `programs` the steps that read one schema as another, `reading` and `writing` what calls the
kernels, `format` what users call.
"""
