// The page. Every text that comes from a table is set as text, never as markup.
import * as cm from "/editor.js";
import {draw, select, short, timeline} from "/charts.js";

const main = document.getElementById("main"), status = document.getElementById("status");
const MOST_ROWS = 10_000, SHOWN_ROWS = 500;
let about = {}, words = {tables: {}, operators: [], functions: []}, running = null;

// --- elements

function make(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else if (value === true) found.setAttribute(key, "");
    else if (value !== false && value != null) found.setAttribute(key, value);
  }
  found.append(...children.filter(each => each != null).map(each => each instanceof Node ? each : document.createTextNode(each)));
  return found;
}
function say(text) { status.textContent = text; status.classList.add("seen"); clearTimeout(say.timer); say.timer = setTimeout(() => status.classList.remove("seen"), 3000); }
async function copy(text, done) {
  try { await navigator.clipboard.writeText(text); say(done); } catch { say("The browser does not allow copying here."); }
}
function bytes(value) {
  if (value == null) return "–";
  let unit = 0;
  while (value >= 1000 && unit < 6) { value /= 1000; unit++; }
  return `${unit ? value.toFixed(1) : value} ${["B", "KB", "MB", "GB", "TB", "PB", "EB"][unit]}`;
}
const count = value => value == null ? "–" : Number(value).toLocaleString("en");
const timestamp = seconds => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
function card(value, label, id) { return make("div", {class: "card"}, make("b", {id, class: value.length > 11 ? "long" : null}, value), make("span", {}, label)); }
function failure(error) {
  const box = make("div", {class: "failure", role: "alert"}, make("strong", {}, error.message ?? String(error)));
  if (error.hint) box.append(make("br"), make("span", {}, error.hint));
  return box;
}
function cell(value, kind) {
  if (value == null) return make("td", {class: "null"}, "null");
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const numeric = ["long", "int", "real", "decimal"].includes(kind);
  return make("td", {class: numeric ? "number" : kind === "dynamic" ? "code" : null, title: text.length > 60 ? text : null}, text);
}
// A heading that begins with "#" is that of numbers.
function head(text) { return make("th", {scope: "col", class: text.startsWith("#") ? "number" : null}, text.replace(/^#/, "")); }
function grid(label, heads, rows) {
  return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label},
    make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(head))), make("tbody", {}, ...rows)));
}
function tabs(label, views, first = 0) {
  const panel = make("div", {role: "tabpanel", id: "panel", tabindex: "0", "aria-label": label});
  const buttons = views.map(([name, show], index) => make("button", {role: "tab", id: `tab-${index}`, "aria-selected": "false", "aria-controls": "panel", tabindex: "-1",
    onclick: () => choose(index), onkeydown: event => {
      const to = {ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose((to + views.length) % views.length);
      buttons[(to + views.length) % views.length].focus();
    }}, name));
  function choose(index) {
    buttons.forEach((each, i) => { each.setAttribute("aria-selected", i === index); each.tabIndex = i === index ? 0 : -1; });
    panel.setAttribute("aria-label", views[index][0]);
    panel.replaceChildren(make("p", {class: "quiet busy"}, "Reading"));
    chosen = index;
    Promise.resolve(views[index][1](panel)).catch(failure).then(found => { if (chosen === index) panel.replaceChildren(found); });
  }
  let chosen;
  choose(first);
  return make("section", {}, make("div", {class: "tabs", role: "tablist", "aria-label": label}, ...buttons), panel);
}

// --- requests

async function ask(path, body, signal) {
  const headers = {}, token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal});
  if (answer.status === 401) { await login(); return ask(path, body, signal); }
  if (!answer.ok) throw await answer.json().catch(() => ({message: `The server answered ${answer.status}`}));
  return answer;
}
async function told(path, body) { return (await ask(path, body)).json(); }
async function lines(path, body, each, signal) {
  const reader = (await ask(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) each(JSON.parse(part));
  }
  if (rest.trim()) each(JSON.parse(rest));
}
let asking = null;
function login() {
  asking ??= new Promise(resolve => {
    const dialog = document.getElementById("login"), field = document.getElementById("token");
    sessionStorage.removeItem("token");
    dialog.addEventListener("close", () => { sessionStorage.setItem("token", field.value.trim()); field.value = ""; asking = null; resolve(); whoAmI(); }, {once: true});
    dialog.showModal();
  });
  return asking;
}
const named = name => `name=${encodeURIComponent(name)}`;

// --- tables

async function showTables() {
  const body = make("tbody"), heads = ["Table", "Health", "#Version", "#Files", "#Rows", "#Bytes", "#Since checkpoint", "Location"];
  main.replaceChildren(make("h1", {}, "Tables"), make("p", {class: "quiet", id: "tables-note"}, "Reading"),
    make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Tables"},
      make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(head))), body)));
  let number = 0;
  await lines("/api/tables", null, each => {
    if ("more" in each) { if (each.more) say("There are more tables."); return; }
    number++;
    const link = make("a", {href: `#/table/${encodeURIComponent(each.name)}`}, each.name);
    if (each.error) { body.append(make("tr", {}, make("td", {}, link), make("td", {colspan: "7"}, make("span", {class: "pill bad"}, "unreadable"), each.message))); return; }
    const notes = each.notes.length ? each.notes.map(note => make("span", {class: "pill bad"}, note)) : [make("span", {class: "pill good"}, "good")];
    const health = make("a", {class: "plain", href: `#/table/${encodeURIComponent(each.name)}?tab=health`, title: `Health of ${each.name}`}, ...notes.flatMap((note, i) => i ? [" ", note] : [note]));
    body.append(make("tr", {}, make("td", {}, link), make("td", {}, health),
      ...[count(each.version), count(each.files), count(each.rows), bytes(each.bytes), count(each.tail)].map(text => make("td", {class: "number"}, text)), make("td", {class: "code"}, each.place ?? "")));
  });
  document.getElementById("tables-note").textContent = `${number} ${number === 1 ? "table" : "tables"}. Files and bytes come from the version checksum; rows are counted for small tables only.`;
}

// --- one table

async function showTable(name, parameters) {
  const table = await told(`/api/table?${named(name)}`);
  const isQueryable = !name.includes("/");
  main.replaceChildren(make("h1", {}, name), make("p", {class: "quiet"}, table.place ?? ""),
    make("div", {class: "cards"}, card(count(table.version), "version"), card(count(table.files), "files", "files-card"), card(count(table.rows), "rows", "rows-card"), card(bytes(table.bytes), "bytes"),
      card(table.checkpoint == null ? "none" : count(table.checkpoint), "checkpoint"), card(count(table.tail), "commits since"),
      card(`${table.protocol.reader} / ${table.protocol.writer}`, "reader / writer")),
    make("div", {class: "bar"}, ...(isQueryable ? [make("a", {class: "button primary", href: `#/query?${new URLSearchParams({kql: `${quoted(name)}\n| take 100`})}`}, "Query it")] : []),
      make("a", {class: "button", href: `#/explain?${new URLSearchParams({table: name})}`}, "Explain a scan")));
  const chart = make("section", {"aria-label": "Timeline"}, make("h2", {}, "Timeline"), make("p", {class: "quiet busy"}, "Reading the manifest"));
  main.append(chart);
  const lined = told(`/api/timeline?${named(name)}`);
  const views = [["Schema", () => schema(name, table, lined)], ["History", () => history(name)], ["Partitions", () => partitions(name)], ["Properties", () => properties(table)], ["Health", () => health(name)]];
  main.append(tabs("Details", views, Math.max(views.findIndex(each => each[0].toLowerCase() === parameters.get("tab")), 0)));
  lined.then(found => showTimeline(chart, name, found), error => chart.replaceChildren(make("h2", {}, "Timeline"), failure(error)));
}
const quoted = name => /^[A-Za-z_]\w*$/.test(name) ? name : `['${name}']`;

function showTimeline(parent, name, data) {
  if (data.none || !data.files.length) { parent.replaceChildren(make("h2", {}, "Timeline"), make("p", {class: "quiet"}, data.none ?? "There are no files.")); return; }
  const box = make("div", {class: "chart", id: "timeline", role: "group", "aria-label": "Files over time; the two times above choose a range"}), files = make("div", {id: "brushed"});
  const fields = ["files", ...(data.rows ? ["rows", "bytes"] : [])];
  const choice = make("select", {"aria-label": "What to draw", onchange: () => redraw()}, ...fields.map(each => make("option", {value: each}, each)));
  const end = data.start + data.files.length * data.step;
  const [from, to] = ["from", "to"].map((word, i) => make("input", {type: "datetime-local", step: data.step, "aria-label": word,
    value: timestamp(i ? end : data.start).replace(" ", "T")}));
  const source = data.exact ? "from the files in the log" : `from the manifest of version ${data.version}, to within a row group`;
  const known = document.getElementById("files-card"), number = Math.round(data.files.reduce((a, b) => a + b, 0)) + data.undated;
  if (known.textContent === "–") known.textContent = data.exact ? count(number) : `≈ ${short(number)}`;
  const rows = document.getElementById("rows-card");
  if (rows.textContent === "–" && data.rows && !data.undated) {
    rows.textContent = count(data.rows.reduce((a, b) => a + b, 0));
    rows.className = rows.textContent.length > 11 ? "long" : "";
  }
  const note = `${data.exact ? count(number) : `About ${short(number)}`} files by ${data.column}, ${source}; ${data.step / 3600} h a bar, UTC. Drag over it to see files.`;
  parent.replaceChildren(make("h2", {}, "Timeline"), make("p", {class: "quiet"}, note),
    make("div", {class: "bar"}, choice, make("label", {}, "from ", from), make("label", {}, "to ", to),
      make("button", {onclick: () => { const [a, b] = [from, to].map(each => Date.parse(each.value + "Z") / 1000); select(plot, a, b); brush(a, b); }}, "Show files")), box, files);
  let plot, stop = null;
  function redraw() { plot?.destroy(); box.replaceChildren(); plot = timeline(box, data, choice.value, brush); box.dataset.drawn = choice.value; }
  async function brush(first, last) {
    [from.value, to.value] = [first, last].map(each => timestamp(each).replace(" ", "T"));
    stop?.abort();
    stop = new AbortController();
    const body = make("tbody"), sum = make("p", {class: "quiet", id: "brushed-sum", role: "status"}, "Reading");
    files.replaceChildren(make("h2", {}, `Files from ${timestamp(first)} to ${timestamp(last)}`), sum,
      make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Files"}, make("table", {},
        make("thead", {}, make("tr", {}, ...["Path", "#Rows", "#Bytes"].map(head))), body)));
    let total = {files: 0, rows: 0, bytes: 0};
    const words = () => `${count(total.files)} files, ${count(total.rows)} rows, ${bytes(total.bytes)}`;
    try {
      await lines("/api/files", {table: name, first, last, limit: 1000}, each => {
        if (each.files) body.append(...each.files.slice(0, Math.max(SHOWN_ROWS - body.childElementCount, 0)).map(([path, size, rows]) =>
          make("tr", {}, make("td", {class: "code", title: path}, path), make("td", {class: "number"}, count(rows)), make("td", {class: "number"}, bytes(size)))));
        if (each.total) { total = each.total; sum.textContent = words(); }
      }, stop.signal);
      sum.textContent = `${words()}${total.files > body.childElementCount ? `; the first ${count(body.childElementCount)} are shown` : ""}.`;
      sum.dataset.state = "done";
    } catch (error) { if (error.name !== "AbortError") files.append(failure(error)); }
  }
  redraw();
}

async function schema(name, table, lined) {
  let ranges = (await lined.catch(() => ({}))).ranges ?? {};
  if (!Object.keys(ranges).length) ranges = await told(`/api/statistics?${named(name)}`);
  const rows = table.columns.map(each => {
    const range = ranges[each.name];
    const marks = [each.partition ? "partition" : null, each.name === table.time ? "time" : null].filter(Boolean);
    return make("tr", {}, make("td", {}, each.name, " ", ...marks.map(mark => make("span", {class: "pill"}, mark))), make("td", {class: "code"}, each.type), make("td", {}, each.kusto ?? ""),
      make("td", {}, each.nullable ? "yes" : "no"), make("td", {class: "code"}, range?.min ?? ""), make("td", {class: "code"}, range?.max ?? ""), make("td", {}, range ? range.nulls != null ? count(range.nulls) : range.has_null ? "some" : "none" : ""));
  });
  return grid("Schema", ["Column", "Type", "In KQL", "Nullable", "Least", "Greatest", "Nulls"], rows);
}
async function history(name) {
  const rows = (await told(`/api/history?limit=50&${named(name)}`)).map(each => make("tr", {}, make("td", {class: "number"}, count(each.version)),
    make("td", {}, each.timestamp ? timestamp(each.timestamp / 1000) : ""), make("td", {}, each.operation ?? ""), make("td", {class: "code", title: JSON.stringify(each.operationMetrics ?? {})}, JSON.stringify(each.operationParameters ?? {}))));
  return grid("History", ["#Version", "Time (UTC)", "Operation", "Parameters"], rows);
}
async function partitions(name) {
  const found = await told(`/api/partitions?${named(name)}`);
  if (!found.partitions.length) return make("p", {class: "quiet"}, "The table is not partitioned, or has no files.");
  const names = Object.keys(found.partitions[0]);
  const box = grid("Partitions", names, found.partitions.map(each => make("tr", {}, ...names.map(key => cell(each[key], "string")))));
  return found.more ? make("div", {}, make("p", {class: "quiet"}, `The first ${found.partitions.length} that were found.`), box) : box;
}
function properties(table) {
  const found = Object.entries(table.properties);
  if (!found.length) return make("p", {class: "quiet"}, "The table has no properties.");
  return grid("Properties", ["Property", "Value"], found.map(([key, value]) => make("tr", {}, make("td", {class: "code"}, key), make("td", {class: "code"}, value))));
}
async function health(name) {
  const list = (await told(`/api/health?${named(name)}`)).findings;
  if (!list.length) return make("p", {}, make("span", {class: "pill good"}, "good"), " The doctor finds nothing.");
  return make("div", {class: "findings"}, ...list.map(each => make("div", {class: "card"}, make("span", {class: `pill ${each.severity}`}, each.severity), make("strong", {}, each.what),
    make("p", {class: "quiet"}, `Cost: ${each.cost}`), make("div", {class: "bar"}, make("pre", {class: "grow", tabindex: "0", "aria-label": `Command: ${each.what}`, role: "region"}, make("code", {}, each.command)),
      make("button", {"aria-label": `Copy the command: ${each.command}`, onclick: () => copy(each.command, "The command is copied.")}, "Copy")),
    each.by_hand ? make("p", {class: "quiet"}, "For the engine that writes the table.") : null)));
}

// --- the editor

const KQL_WORDS = /^(?:where|filter|project(?:-away|-keep|-rename|-reorder)?|extend|summarize|sort|order|top|take|limit|sample|distinct|count|getschema|union|join|lookup|render|by|on|kind|asc|desc|nulls|first|last|let|print|range|from|to|step|datatable|and|or|not|in|has|contains|startswith|endswith|between|matches|regex|true|false|with)$/;
const kqlLanguage = cm.StreamLanguage.define({
  token(stream) {
    if (stream.match(/\/\/.*/)) return "comment";
    if (stream.match(/[hH]?@?"(?:[^"\\]|\\.)*"?/) || stream.match(/[hH]?@?'(?:[^'\\]|\\.)*'?/)) return "string";
    if (stream.match(/\d+(?:\.\d+)?(?:ms|[smhd])?/)) return "number";
    const word = stream.match(/[A-Za-z_][\w-]*/);
    if (word) { if (KQL_WORDS.test(word[0]) || words.operators.includes(word[0])) return "keyword"; return stream.peek() === "(" ? "variableName.function" : "variableName"; }
    stream.next();
    return "operator";
  }, languageData: {commentTokens: {line: "//"}},
});
const colors = cm.HighlightStyle.define([{tag: cm.tags.keyword, color: "var(--blue)", fontWeight: "600"}, {tag: cm.tags.string, color: "var(--green)"},
  {tag: cm.tags.number, color: "var(--amber)"}, {tag: cm.tags.comment, color: "var(--soft)", fontStyle: "italic"}]);
const look = cm.EditorView.theme({
  "&": {fontSize: "14px", color: "var(--ink)", backgroundColor: "var(--paper)", minHeight: "150px", maxHeight: "45vh"}, "&.cm-focused": {outline: "none"},
  ".cm-scroller": {fontFamily: "var(--mono)", minHeight: "150px"}, ".cm-gutters": {backgroundColor: "var(--card)", color: "var(--soft)", border: "0"},
  ".cm-activeLine": {backgroundColor: "transparent"}, ".cm-cursor": {borderLeftColor: "var(--ink)"}, ".cm-content": {caretColor: "var(--ink)"},
  ".cm-tooltip": {backgroundColor: "var(--card)", border: "1px solid var(--line)", color: "var(--ink)"},
  ".cm-tooltip-autocomplete ul li[aria-selected]": {backgroundColor: "var(--blue)", color: "var(--on-blue)"}, ".cm-selectionBackground": {backgroundColor: "color-mix(in srgb, var(--blue) 25%, transparent) !important"},
});
const SQL_WORDS = `SELECT DISTINCT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET AS AND OR NOT IN IS NULL LIKE ILIKE BETWEEN CASE WHEN THEN ELSE END
  JOIN LEFT RIGHT FULL INNER CROSS ON USING UNION ALL EXCEPT INTERSECT WITH OVER PARTITION QUALIFY FILTER CAST INTERVAL TIMESTAMP DATE DESC ASC NULLS FIRST LAST
  EXISTS VALUES TRUE FALSE EXPLAIN DESCRIBE`.split(/\s+/);
const completions = language => context => {
  const word = context.matchBefore(/[\w-]+/);
  if (!word && !context.explicit) return null;
  const text = context.state.doc.toString();
  const used = Object.keys(words.tables).filter(name => text.includes(name));
  const options = [
    ...Object.keys(words.tables).map(label => ({label, type: "class", boost: 2})),
    ...(used.length ? used : Object.keys(words.tables)).flatMap(name => words.tables[name].map(([label, kind]) => ({label, detail: kind, type: "property", boost: 1}))),
    ...(language() === "sql" ? SQL_WORDS : words.operators).map(label => ({label, type: "keyword"})),
    ...(language() === "sql" ? words.sql : words.functions).map(label => ({label, type: "function", apply: `${label}(`})),
  ];
  const seen = new Set();
  return {from: word ? word.from : context.pos, options: options.filter(each => !seen.has(each.label) && seen.add(each.label)), validFor: /^[\w-]*$/};
};
function editor(parent, text, language, run) {
  // In a shadow root the editor adopts its style sheets; a <style> element would offend the content security policy.
  const root = parent.attachShadow({mode: "open"}), kind = new cm.Compartment();
  const chosen = each => each === "sql" ? cm.sql({dialect: cm.StandardSQL, upperCaseKeywords: true}) : kqlLanguage;
  const view = new cm.EditorView({root, parent: root, state: cm.EditorState.create({doc: text, extensions: [
    cm.lineNumbers(), cm.history(), cm.drawSelection(), cm.bracketMatching(), cm.closeBrackets(), cm.highlightActiveLine(), kind.of(chosen(language)),
    cm.syntaxHighlighting(colors), look, cm.EditorView.lineWrapping, cm.autocompletion({override: [completions(() => language)]}), cm.EditorView.contentAttributes.of({"aria-label": "Query"}),
    cm.keymap.of([{key: "Mod-Enter", run: () => (run(), true)}, {key: "Shift-Enter", run: () => (run(), true)}, ...cm.closeBracketsKeymap, ...cm.completionKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
  ]})});
  return {view, text: () => view.state.doc.toString(), set: each => view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: each}}),
    language: each => { language = each; view.dispatch({effects: kind.reconfigure(chosen(each))}); },
    mark: error => {
      if (!error?.line) { view.dispatch(cm.setDiagnostics(view.state, [])); return; }
      const line = view.state.doc.line(Math.min(error.line, view.state.doc.lines)), from = Math.min(line.from + error.column - 1, line.to);
      const length = /^[\w-]+/.exec(line.text.slice(error.column - 1))?.[0].length ?? 1;
      const start = from === view.state.doc.length && from ? from - 1 : from;
      view.dispatch(cm.setDiagnostics(view.state, [{from: start, to: Math.min(Math.max(from + length, start + 1), view.state.doc.length), severity: "error", message: error.message}]));
    }};
}

// --- query

// With tokens, several people may use one browser: the history is that of a user and ends with the tab.
const kept = () => about.tokens ? sessionStorage : localStorage, historyKey = () => about.tokens ? `history of ${about.user}` : "history";
const past = () => { try { return JSON.parse(kept().getItem(historyKey()) ?? "[]"); } catch { return []; } };
function remember(language, text) {
  const found = [{language, text}, ...past().filter(each => each.text !== text || each.language !== language)].slice(0, 30);
  kept().setItem(historyKey(), JSON.stringify(found));
}
async function showQuery(parameters) {
  words = await told("/api/words");
  const first = Object.keys(words.tables)[0] ?? "T";
  let language = parameters.has("sql") ? "sql" : "kql";
  const given = parameters.get(language), start = given ?? `${quoted(first)}\n| take 100`;
  const choice = make("select", {id: "language", "aria-label": "Language", onchange: () => { language = choice.value; box.language(language); }},
    make("option", {value: "kql", selected: language === "kql"}, "KQL"), make("option", {value: "sql", selected: language === "sql"}, "SQL"));
  const go = make("button", {class: "primary", id: "run", onclick: () => run()}, "Run"), halt = make("button", {id: "stop", disabled: true, onclick: () => stop()}, "Stop");
  const link = make("button", {onclick: () => { share(); copy(location.href, "The link is copied."); }}, "Copy link");
  const downloads = ["csv", "json", "parquet"].map(format => make("button", {onclick: () => download(format)}, format === "parquet" ? "Parquet" : format.toUpperCase()));
  const space = make("div", {class: "editor"}), result = make("section", {id: "result", "aria-label": "Result"}), list = make("div", {class: "history"});
  main.replaceChildren(make("h1", {}, "Query"), make("div", {class: "bar"}, choice, go, halt, link, make("span", {class: "quiet"}, "Ctrl+Enter runs. Download:"), ...downloads), space, result,
    make("details", {}, make("summary", {}, "History"), list, make("button", {onclick: () => { kept().removeItem(historyKey()); showPast(); }}, "Clear the history")));
  const box = editor(space, start, language, () => run());
  function share() { window.history.replaceState(null, "", `#/query?${new URLSearchParams({[language]: box.text()})}`); }
  function showPast() {
    list.replaceChildren(...(past().length ? [] : [make("p", {class: "quiet"}, "There are no queries yet.")]), ...past().map(each => make("button", {title: each.text, onclick: () => { language = choice.value = each.language; box.language(language); box.set(each.text); }}, `${each.language}  ${each.text.replaceAll("\n", " ")}`)));
  }
  showPast();
  async function stop() {
    if (!running) return;
    halt.disabled = true;
    await told("/api/cancel", {id: running.id}).catch(() => null);
  }
  async function run() {
    if (running) return;
    const mine = running = {id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, abort: new AbortController()};
    share(); box.mark(null); remember(language, box.text()); showPast();
    go.disabled = true; halt.disabled = false;
    const table = results(result);
    try {
      await lines("/api/query", {language, text: box.text(), id: mine.id}, each => {
        if (each.columns) table.columns(each.columns, each.render);
        if (each.rows) table.rows(each.rows);
        if (each.failure) { table.failed(each.failure); box.mark(each.failure); }
        if (each.end) table.ended(each.end);
      }, mine.abort.signal);
    } catch (error) { if (error.name !== "AbortError") { table.failed(error); box.mark(error); } }
    finally { running = null; go.disabled = false; halt.disabled = true; }
  }
  async function download(format) {
    try {
      const answer = await ask("/api/download", {language, text: box.text(), format});
      const url = URL.createObjectURL(await answer.blob()), ending = format === "json" ? "ndjson" : format;
      make("a", {href: url, download: `rows.${ending}`}).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch (error) { result.replaceChildren(failure(error)); box.mark(error); }
  }
  if (given) run();
}

function results(parent) {
  let columns = [], render = null, kept = [], number = 0, sorted = null, waiting = false;
  const note = make("p", {class: "quiet busy", id: "rows-note", role: "status"}, "Running"), chart = make("div", {class: "chart", id: "chart", hidden: true});
  const filter = make("input", {class: "grow", type: "search", placeholder: "Filter what is here", "aria-label": "Filter rows", oninput: () => show()});
  const head = make("tr"), body = make("tbody"), space = make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows", hidden: true}, make("table", {}, make("thead", {}, head), body));
  const bar = make("div", {class: "bar", hidden: true}, filter);
  parent.replaceChildren(note, chart, bar, space);
  function show() {
    waiting = false;
    const needle = filter.value.toLowerCase();
    let rows = needle ? kept.filter(row => row.some(value => value != null && String(typeof value === "object" ? JSON.stringify(value) : value).toLowerCase().includes(needle))) : kept;
    if (sorted) {
      const [at, up] = sorted, numeric = ["long", "int", "real", "decimal"].includes(columns[at].kind);
      rows = [...rows].sort((a, b) => {
        const [x, y] = [a[at], b[at]];
        if (x == null || y == null) return (x == null) - (y == null);
        const order = numeric ? Number(x) - Number(y) : String(x) < String(y) ? -1 : String(x) > String(y) ? 1 : 0;
        return up ? order : -order;
      });
    }
    body.replaceChildren(...rows.slice(0, SHOWN_ROWS).map(row => make("tr", {}, ...row.map((value, i) => cell(value, columns[i].kind)))));
  }
  // Rows beyond those that are shown change nothing, unless they are sorted or filtered.
  function later() { if (kept.length > 2 * SHOWN_ROWS && !sorted && !filter.value && body.childElementCount === SHOWN_ROWS) return; if (!waiting) { waiting = true; requestAnimationFrame(show); } }
  function heads() {
    head.replaceChildren(...columns.map((each, i) => {
      const direction = sorted?.[0] === i ? sorted[1] ? "ascending" : "descending" : "none";
      const numeric = ["long", "int", "real", "decimal"].includes(each.kind);
      return make("th", {scope: "col", class: numeric ? "number" : null, "aria-sort": direction, title: each.kind}, make("button", {onclick: () => { sorted = [i, direction !== "ascending"]; heads(); show(); }},
        `${each.name}${direction === "none" ? "" : direction === "ascending" ? " ↑" : " ↓"}`));
    }));
  }
  return {
    columns(found, how) { columns = found; render = how; heads(); bar.hidden = space.hidden = false; },
    rows(found) {
      number += found.length;
      if (kept.length < MOST_ROWS) kept.push(...found.slice(0, MOST_ROWS - kept.length));
      note.textContent = `${count(number)} rows`;
      later();
    },
    ended(end) {
      note.classList.remove("busy");
      const shown = number > SHOWN_ROWS ? `; the first ${SHOWN_ROWS} are shown, ${count(Math.min(number, MOST_ROWS))} are here to sort and filter` : "";
      note.textContent = `${count(end.rows)} rows in ${end.seconds} s${shown}.`;
      note.dataset.state = "done";
      show();
      if (render && render.visualization !== "table") { chart.hidden = false; draw(chart, render, columns, kept, number > kept.length ? `Drawn from the first ${count(kept.length)} rows.` : ""); }
    },
    failed(error) {
      note.classList.remove("busy");
      note.dataset.state = "failed";
      note.textContent = number ? `${count(number)} rows before the query ended.` : "";
      note.after(failure(error));
    },
  };
}

// --- explain

async function showExplain(parameters) {
  words = await told("/api/words");
  const names = Object.keys(words.tables), asked = parameters.get("table");
  if (asked && !names.includes(asked)) names.push(asked);
  const table = make("select", {"aria-label": "Table", id: "explain-table"}, ...names.map(name => make("option", {selected: name === asked}, name)));
  const where = make("input", {class: "grow", id: "where", "aria-label": "Condition in SQL", placeholder: "condition in SQL, such as value > 10", value: parameters.get("where") ?? "", spellcheck: "false"});
  const limit = make("input", {type: "number", min: "1", "aria-label": "Limit of files", placeholder: "limit"});
  const out = make("section", {id: "explained", "aria-label": "Explanation"});
  const form = make("form", {class: "bar", onsubmit: event => { event.preventDefault(); run(); }}, table, where, limit, make("button", {class: "primary", id: "explain-run"}, "Explain"));
  main.replaceChildren(make("h1", {}, "Explain"), make("p", {class: "quiet"}, "Runs a scan of files, not of rows, and shows what was read, what was left out and why."), form, out);
  async function run() {
    window.history.replaceState(null, "", `#/explain?${new URLSearchParams({table: table.value, where: where.value})}`);
    out.replaceChildren(make("p", {class: "quiet busy"}, "Scanning"));
    try {
      const found = await told("/api/explain", {table: table.value, where: where.value || null, limit: Number(limit.value) || null});
      const facts = [...Object.entries(found.plan), ...Object.entries(found.metrics).map(([key, value]) => [key.replace("delta.lazy.", ""), value])];
      const seen = new Set(), rows = facts.filter(([key, value]) => value != null && value !== "" && !(Array.isArray(value) && !value.length) && !seen.has(key) && seen.add(key))
        .map(([key, value]) => make("tr", {}, make("td", {}, key.replaceAll("_", " ")), make("td", {class: "code"}, Array.isArray(value) ? value.join("; ") : String(value))));
      const words = `${found.metrics["delta.lazy.files_emitted"]} of ${found.metrics["delta.lazy.files_considered"]} files, ${found.metrics["delta.lazy.requests"]} requests`;
      out.replaceChildren(make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Picture of the scan"},
        make("img", {class: "picture", id: "picture", alt: `How the scan went: ${words}`, src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(found.svg)}`})),
        make("details", {}, make("summary", {}, "All facts"), grid("Facts", ["Fact", "Value"], rows)));
    } catch (error) { out.replaceChildren(failure(error)); }
  }
  if (asked) run();
}

// --- where the page is

async function route() {
  running?.abort.abort();
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?"), parameters = new URLSearchParams(search);
  const [, view = "tables", ...rest] = path.split("/");
  for (const each of document.querySelectorAll("nav a")) each.toggleAttribute("aria-current", each.getAttribute("href") === `#/${view === "table" ? "tables" : view || "tables"}`);
  for (const each of document.querySelectorAll("nav a[aria-current]")) each.setAttribute("aria-current", "page");
  const place = view === "table" ? decodeURIComponent(rest.join("/")) : {query: "Query", explain: "Explain"}[view] ?? "Tables";
  document.title = `${place} · lazydelta`;
  try {
    if (view === "table") await showTable(place, parameters);
    else if (view === "query") await showQuery(parameters);
    else if (view === "explain") await showExplain(parameters);
    else await showTables();
  } catch (error) { main.replaceChildren(make("h1", {}, place), failure(error)); }
}
// A screen reader hears of a new view by its focus.
window.addEventListener("hashchange", () => { say(""); route().then(() => { if (!main.contains(document.activeElement)) main.focus({preventScroll: true}); window.scrollTo(0, 0); }); });
async function whoAmI() {
  about = await told("/api/about");
  document.getElementById("who").textContent = `${about.tokens ? `${about.user} · ` : ""}${about.version}`;
}
// The address holds the view, so the link must not change it.
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); main.focus(); });
whoAmI().finally(route);
