"""Style sheet of the page for light, dark and narrow screens and for paper, and its script."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

LIGHT = """
  --page: #fbfbfa; --surface: #ffffff; --ink: #1b1f26; --soft: #5c6470; --line: #e3e5e9;
  --accent: #2563eb; --warn: #8a5a00; --warn-page: #fff6e0; --warn-line: #ecd08c;
"""

STYLE = (
    """
:root { color-scheme: light dark;"""
    + LIGHT
    + """}
@media (prefers-color-scheme: dark) { :root {
  --page: #14171c; --surface: #1b1f26; --ink: #e8eaee; --soft: #a0a8b5; --line: #313844;
  --accent: #7eb0ff; --warn: #f0c566; --warn-page: #2c2513; --warn-line: #5f4d1c;
} }
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1140px; padding: 40px 28px 80px; background: var(--page);
  color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
}
h1 { font-size: 34px; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 6px; }
h2 { font-size: 22px; letter-spacing: -0.01em; margin: 56px 0 12px; }
h3 { font-size: 16px; margin: 0 0 8px; }
h1, h2, h3, td, dd, .lead { overflow-wrap: anywhere; }
p { max-width: 46em; margin: 8px 0; }
a { color: var(--accent); }
.lead { font-size: 18px; color: var(--soft); max-width: 46em; margin: 0 0 26px; }
.lead strong { color: var(--ink); font-weight: 600; white-space: nowrap; }
.soft, small, figcaption, .empty { color: var(--soft); }
small { display: block; font-size: 12.5px; font-weight: 400; line-height: 1.4; }
code, pre { font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre {
  background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px;
  overflow-x: auto; margin: 10px 0;
}
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px; margin: 0;
  background: var(--line); border: 1px solid var(--line); border-radius: 10px; overflow: hidden;
}
.facts div { background: var(--surface); padding: 11px 14px; }
dt { font-size: 12.5px; color: var(--soft); }
dd { margin: 0; font-size: 15px; font-weight: 500; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
td { font-variant-numeric: tabular-nums; }
th { text-align: left; font-size: 13px; font-weight: 600; vertical-align: bottom; }
th, td { padding: 9px 16px 9px 0; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
.card, figure {
  background: var(--surface); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin: 0 0 20px;
}
.finalists td { white-space: nowrap; }
.finalists td code { font-size: 12.5px; white-space: normal; }
.finalists td:last-child { min-width: 130px; }
.dot {
  display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 8px;
}
.pick { font-weight: 650; }
.flag { color: var(--warn); }
.flag.mark { font-weight: 650; }
.finalists small.missed { white-space: normal; min-width: 14em; overflow-wrap: anywhere; }
.warnings {
  background: var(--warn-page); border: 1px solid var(--warn-line); border-radius: 10px;
  padding: 12px 20px; margin: 20px 0;
}
.warnings ul { margin: 4px 0; padding-left: 20px; }
.warnings strong { color: var(--warn); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 20px; }
.pair > * { min-width: 0; }
figcaption { font-size: 14px; margin-top: 10px; max-width: 56em; }
.plot { width: 100%; }
.plot text { fill: var(--ink) !important; }
.plot .gridlayer path, .plot .xlines-above, .plot .ylines-above { stroke: var(--line) !important; }
.plot .hovertext > path, .plot .hoverlayer .legend .bg {
  fill: var(--surface) !important; stroke: var(--soft) !important;
}
.plot .modebar-btn path { fill: var(--soft) !important; }
svg.stages { display: block; margin-top: 8px; max-width: max(100%, 480px); height: auto; }
svg.stages text { font: 11px system-ui, Arial, sans-serif; fill: var(--ink); }
svg.stages .stage { font-size: 12px; fill: var(--soft); }
svg.stages .kernel { font-weight: 600; }
details { margin: 0 0 20px; }
summary { cursor: pointer; color: var(--accent); }
details > :not(summary) { margin-top: 12px; }
.empty {
  border: 1px dashed var(--line); border-radius: 10px; padding: 14px 18px; margin: 0 0 20px;
}
.empty h3 { color: var(--ink); }
footer { margin-top: 56px; font-size: 13px; color: var(--soft); }
@media screen and (max-width: 760px) {
  body { padding: 24px 14px 48px; }
  .pair { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .card, figure { padding: 14px; }
  .facts { grid-template-columns: 1fr 1fr; }
  .finalists, .finalists tbody, .finalists tr, .finalists td { display: block; width: 100%; }
  .finalists thead { display: none; }
  .finalists tr { border-bottom: 1px solid var(--line); padding: 12px 0; }
  .finalists tr:last-child { border-bottom: 0; }
  .finalists td {
    display: grid; grid-template-columns: 42% 58%; border: 0; padding: 3px 0; white-space: normal;
  }
  .finalists td::before { content: attr(data-label); color: var(--soft); font-size: 13px; }
}
@media print {
  :root {"""
    + LIGHT
    + """--page: #ffffff; }
  body { max-width: none; padding: 0; font-size: 11.5pt; }
  .pair { display: block; }
  .facts { grid-template-columns: repeat(3, 1fr); }
  .modebar-container { display: none; }
  figure, tr, svg, pre, .warnings { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  pre { white-space: pre-wrap; }
  .finalists, .finalists th { font-size: 8.5pt; }
  .finalists th, .finalists td { padding-right: 6px; white-space: normal; }
  .finalists small, .finalists td code { font-size: 7.5pt; }
  .finalists td:last-child { min-width: 70px; }
}
"""
)

SCRIPT = """
"use strict";
const root = document.documentElement;
const complain = text => { root.dataset.errors = (root.dataset.errors || "") + text + "; "; };
addEventListener("error", event => complain(event.message));
addEventListener("unhandledrejection", event => complain(event.reason));
addEventListener("securitypolicyviolation", event => complain("refused " + event.blockedURI));
const config = {  // the buttons are named so that none that sends data away can be among them
  responsive: true, displaylogo: false, displayModeBar: "hover", showSendToCloud: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};
addEventListener("load", () => {
  const plots = [...document.querySelectorAll(".plot")];
  for (const plot of plots) {
    const figure = JSON.parse(plot.nextElementSibling.textContent);
    Plotly.newPlot(plot, figure.data, figure.layout, config);
  }
  addEventListener("beforeprint", () => plots.forEach(p => Plotly.relayout(p, {width: 640})));
  addEventListener("afterprint", () =>
    plots.forEach(p => Plotly.relayout(p, {width: null, autosize: true})));
});
"""
