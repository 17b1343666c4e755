"""The documentation site: the pages of `docs/`, and reference pages that are generated from the code.

`python -m docs_site` (or `scripts/docs`) builds the site. `reference` names the generators of its pages.
"""
