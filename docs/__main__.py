"""Builds the documentation as a site that needs no network: python -m docs [DIR]."""

from docs.site.build import main

if __name__ == "__main__":
    raise SystemExit(main())
