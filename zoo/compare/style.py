"""The look of the report: light or dark as the reader's system is, and plain black on white on paper."""

from zoo.compare.drawing import DARK, LIGHT


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


CSS = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} --soft: #f6f7f9; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} --soft: #1c222c; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
main {{ max-width: 960px; margin: 0 auto; padding: 40px 28px 64px; }}
h1 {{ font-size: 27px; line-height: 1.25; margin: 6px 0 18px; text-wrap: balance; }}
h2 {{ font-size: 19px; margin: 44px 0 10px; }}
.over {{ color: var(--grey); font-size: 13px; letter-spacing: .04em; text-transform: uppercase; margin: 0; }}
.answer {{ font-size: 18px; margin: 0 0 8px; padding: 0; list-style: none; }}
.answer li {{ margin: 4px 0; }}
.answer li:first-child {{ font-weight: 650; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14.5px; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: 7px 14px 7px 0; border-bottom: 1px solid var(--frame); vertical-align: top; }}
th {{ color: var(--grey); font-weight: 500; font-size: 13px; white-space: nowrap; }}
td:first-child {{ font-weight: 600; overflow-wrap: break-word; max-width: 22em; }}
tbody th {{ color: inherit; font-weight: 650; font-size: inherit; white-space: normal; }}
td.n {{ white-space: nowrap; }}
tr.base td {{ background: var(--soft); }}
td:first-child, th:first-child {{ padding-left: 8px; }}
.better {{ color: var(--good); }} .worse {{ color: var(--bad); }} .muted, .note {{ color: var(--grey); }}
.note {{ font-size: 13.5px; margin: 8px 0 0; }}
.flags {{ margin: 0; padding: 0; list-style: none; }}
.flags li {{ padding: 8px 12px; margin: 6px 0; background: var(--soft); border-left: 3px solid var(--c6); }}
.flags li.fatal {{ border-color: var(--bad); }}
figure {{ margin: 0; }}
figure svg {{ width: 100%; height: auto; display: block; }}
figcaption {{ color: var(--grey); font-size: 13.5px; margin-top: 4px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; font-size: 14.5px; }}
dt {{ color: var(--grey); }} dd {{ margin: 0; overflow-wrap: anywhere; }}
pre {{ background: var(--soft); padding: 12px 14px; font-size: 13px; overflow-x: auto; white-space: pre-wrap; margin: 0;
  overflow-wrap: anywhere; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }}
footer {{ margin-top: 48px; color: var(--grey); font-size: 13px; }}
@media print {{
  main {{ max-width: none; padding: 0; }} body {{ font-size: 11pt; }} .scroll {{ overflow: visible; }}
  figure, tr, li {{ break-inside: avoid; }} h2 {{ break-after: avoid; margin-top: 24px; }}
  * {{ -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
}}
"""
