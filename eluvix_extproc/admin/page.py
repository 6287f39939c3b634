"""The live page: one HTML document without external assets, which polls /fleet and /decisions.

Whatever comes from outside is put in with textContent, and the Content-Security-Policy allows this page's own script
and style by their hashes and nothing else: a request id made of markup stays text.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; --bad: light-dark(#a40000, #ff8a80);
  --warn: light-dark(#7a4b00, #ffc766); --good: light-dark(#0a6b2d, #7ddf9a); }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 110rem; padding: 1rem 1.5rem 3rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: baseline; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
button { font: inherit; padding: .2rem .9rem; }
:focus-visible { outline: 3px solid Highlight; outline-offset: 2px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { background: var(--soft); font-weight: 600; }
tbody tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; }
td.wide { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.bad { color: var(--bad); font-weight: 600; }
.warn { color: var(--warn); font-weight: 600; }
.good { color: var(--good); }
"""

_SCRIPT = """
"use strict";
const unknown = "–";
const byId = (id) => document.getElementById(id);
const number = (value, digits) => value === null || value === undefined ? unknown
  : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const share = (value) => value === null || value === undefined ? unknown : number(value * 100, 0) + "%";
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

function cell(text, kind) {
  const made = document.createElement("td");
  made.textContent = text === null || text === undefined || text === "" ? unknown : String(text);
  if (kind) made.className = kind;
  return made;
}

function fill(id, rows, columns, empty) {
  const body = byId(id);
  if (rows.length === 0) {
    const only = cell(empty);
    only.colSpan = columns;
    rows = [[only]];
  }
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  }));
}

function showFleet(fleet) {
  const rows = [];
  for (const pool of fleet.pools) {
    if (pool.workers.length === 0) {
      const none = cell("no workers", "bad");
      none.colSpan = 9;
      rows.push([cell(pool.name), cell(pool.role), none]);
    }
    for (const worker of pool.workers) {
      const load = worker.load;
      rows.push([
        cell(pool.name), cell(pool.role), cell(worker.address),
        cell(worker.ready ? "ready" : "not ready", worker.ready ? "good" : "bad"),
        cell(number(worker.in_flight, 0), "number"), cell(number(worker.itl_ms, 1), "number"),
        cell(number(load && load.running, 0), "number"), cell(number(load && load.waiting, 0), "number"),
        cell(share(load && load.kv_usage), "number"), cell(number(load && load.itl_ms, 1), "number"),
        cell(load ? number(load.age_s, 1) + " s" : unknown, "number"),
      ]);
    }
  }
  fill("fleet", rows, 11, "The fleet has no pools.");
}

function how(decision) {
  if (decision.failopen) return decision.outcome + ", unrouted: " + decision.failopen;
  if (decision.refused) return decision.outcome + ": " + decision.refused;
  return decision.outcome;
}

function tone(decision) {
  if (decision.outcome === "internal" || decision.outcome === "upstream_error") return "bad";
  return decision.failopen || decision.fallback || decision.outcome === "refused" ? "warn" : "";
}

function showDecisions(decisions) {
  fill("decisions", decisions.map((each) => [
    cell(clock(each.ended_at)), cell(each.model),
    cell(each.tokens === null ? null : (each.source === "estimate" ? "~" : "") + number(each.tokens, 0), "number"),
    cell(number(each.cached_predicted, 0) + " / " + number(each.cached_delivered, 0), "number"),
    cell(each.role), cell(each.served_worker || each.workers[0]),
    cell(number(each.ttft_ms, 1), "number"), cell(number(each.itl_ms, 1), "number"),
    cell(each.status, "number"), cell(how(each), tone(each)),
    cell(each.reasons.join(" "), "wide"), cell(each.request_id),
  ]), 12, "No requests yet.");
}

let paused = false;
let busy = false;
let seen = "";
let silentSince = "";

// Only what changed is announced: a live region that speaks every second is of no use to anyone.
function say(text, kind) {
  if (text === seen) return;
  seen = text;
  byId("state").textContent = text;
  byId("state").className = kind;
}

async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(path + " answered " + response.status);
  return response.json();
}

async function poll() {
  if (paused || busy || document.hidden) return;
  busy = true;
  try {
    const [fleet, last] = await Promise.all([get("/fleet"), get("/decisions?limit=50")]);
    showFleet(fleet);
    showDecisions(last.decisions);
    silentSince = "";
    if (!paused) say("live", "good");
  } catch (error) {
    silentSince = silentSince || new Date().toLocaleTimeString();
    if (!paused) say("no answer from the sidecar since " + silentSince, "bad");
    await new Promise((done) => setTimeout(done, 1000));
  } finally {
    busy = false;
  }
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  say(paused ? "paused" : "connecting", paused ? "warn" : "");
  poll();
});
document.addEventListener("visibilitychange", poll);
setInterval(poll, 1000);
poll();
"""

_FLEET_HEAD = (
    ("Pool", ""), ("Role", ""), ("Worker", ""), ("State", ""), ("In flight", "number"), ("ITL ms", "number"),
    ("Running", "number"), ("Waiting", "number"), ("KV used", "number"), ("Scraped ITL ms", "number"),
    ("Load age", "number"),
)
_DECISIONS_HEAD = (
    ("Ended", ""), ("Model", ""), ("Tokens", "number"), ("Cached: predicted / delivered", "number"), ("Role", ""),
    ("Worker", ""), ("TTFT ms", "number"), ("ITL ms", "number"), ("Status", "number"), ("Outcome", ""),
    ("Reasons", ""), ("Request id", ""),
)


def _table(title: str, body: str, head: tuple[tuple[str, str], ...]) -> str:
    # A region that scrolls must be reachable by keyboard, hence tabindex.
    columns = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in head)
    return (
        f'<h2 id="{body}-title">{title}</h2>\n'
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{body}-title"><table>\n'
        f'<thead><tr>{columns}</tr></thead><tbody id="{body}"></tbody></table></div>\n'
    )


_HTML = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Eluvix ext_proc</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>
<body><header><h1>Eluvix ext_proc</h1><span id="state" role="status">connecting</span>
<button id="pause" type="button" aria-pressed="false">Pause</button></header><main>
{_table("Fleet", "fleet", _FLEET_HEAD)}{_table("Last requests", "decisions", _DECISIONS_HEAD)}
<p>Tokens with ~ are an estimate; &ndash; is not known. In flight counts this process only.
See also <a href="/metrics">/metrics</a>, <a href="/config">/config</a>, <a href="/readyz">/readyz</a>.</p>
</main><script>{_SCRIPT}</script></body></html>
"""


def _hash(text: str) -> str:
    return "'sha256-" + b64encode(sha256(text.encode()).digest()).decode() + "'"


PAGE = _HTML.encode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
