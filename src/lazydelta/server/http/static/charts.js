// Charts: the timeline that can be brushed, and what `render` asks for. uPlot draws over time and numbers; bars of
// names and pies are a few elements of SVG. Texts are set as text, never as markup.
import {uPlot} from "/editor.js";

const SVG = "http://www.w3.org/2000/svg";
const LIGHT = ["#1f6feb", "#d9730d", "#1a7f37", "#8250df", "#cf222e", "#0f8a8a", "#9a6700", "#bf3989", "#57606a", "#3c6e47"];
const DARK = ["#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#ff7b72", "#39c5cf", "#d29922", "#f778ba", "#9aa7b4", "#7ee787"];
const MOST = 8, MOST_BARS = 60;
// How uPlot writes ticks: distance in seconds, format, then what is added where the year, month and day change.
const TIMES = [[31536000, "{YYYY}"], [2419200, "{MMM}", "\n{YYYY}"], [86400, "{D} {MMM}", "\n{YYYY}"], [3600, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}"],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}"], [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}"], [0.001, ":{ss}.{fff}", "\n{D} {MMM} {HH}:{mm}"]]
  .map(row => [...row, ...Array(8 - row.length).fill(null), 1]);

const WHOLE = Array.from({length: 19}, (_, i) => [1, 2, 5].map(each => each * 10 ** i)).flat();
const palette = () => matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;
function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function axis(extra = {}) { return {stroke: css("--soft"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line")}, ...extra}; }
function axes(time, whole = false) {
  const across = axis(time ? {values: TIMES} : {values: (_u, ticks) => ticks.map(short)});
  return [across, axis({size: 64, values: (_u, ticks) => ticks.map(short), ...(whole ? {incrs: WHOLE} : {})})];
}
const clock = seconds => new Date(seconds * 1e3).toISOString().slice(0, 16).replace("T", " ");
export function short(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (size >= limit * 0.99995) return (value / (unit === " k" ? 1e3 : limit)).toFixed(1).replace(/\.0$/, "") + unit;
  }
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

function fitted(parent, label, make) {
  const plot = make(Math.max(parent.clientWidth - 20, 240));
  const watch = new ResizeObserver(() => plot.setSize({width: Math.max(parent.clientWidth - 20, 240), height: plot.height}));
  watch.observe(parent);
  const canvas = plot.root.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return plot;
}

export function timeline(parent, data, field, brushed) {
  const x = data.files.map((_, i) => data.start + i * data.step), end = data.start + data.files.length * data.step, color = palette()[0];
  // One more point, so that the last step is as wide as the others.
  const [xs, ys] = [[...x, end], [...data[field], data[field].at(-1)]];
  const most = Math.max(...data[field]), label = `${field} by time from ${clock(data.start)} to ${clock(end)}, at most ${short(most)} in a step`;
  return fitted(parent, label, width => new uPlot({
    width, height: 220, tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
    cursor: {drag: {x: true, y: false, setScale: false}},
    scales: {x: {time: true, range: [data.start, end]}, y: {range: (_u, _min, max) => [0, max * 1.05 || 1]}},
    axes: axes(true, true),
    series: [{label: "time (UTC)", value: (_u, v) => v == null ? "" : clock(v)}, {label: field, stroke: color, fill: color + "55", width: 1,
      paths: uPlot.paths.stepped({align: 1}), points: {show: false}, value: (_u, v) => v == null ? "" : short(v)}],
    hooks: {setSelect: [u => {
      if (u.select.width < 2) return;
      const [first, last] = [u.select.left, u.select.left + u.select.width].map(at => u.posToVal(at, "x"));
      brushed(Math.floor(first / data.step) * data.step, Math.ceil(last / data.step) * data.step);
    }]},
  }, [xs, ys], parent));
}

export function select(plot, first, last) {
  const [left, right] = [first, last].map(each => plot.valToPos(each, "x"));
  plot.setSelect({left, width: Math.max(right - left, 1), top: 0, height: plot.over.clientHeight}, false);
}

// --- render

function element(name, attributes, text) {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text !== undefined) found.textContent = text;
  return found;
}
function legend(labels, colors) {
  const list = document.createElement("ul");
  list.className = "legend";
  list.append(...labels.map((label, i) => {
    const item = document.createElement("li"), mark = element("svg", {viewBox: "0 0 12 12", "aria-hidden": "true"});
    mark.append(element("rect", {width: 12, height: 12, rx: 2, fill: colors[i] ?? css("--soft")}));
    item.append(mark, label);
    return item;
  }));
  return list;
}
function note(parent, text, name = "p") {
  const found = document.createElement(name);
  found.textContent = text;
  if (name === "p") found.className = "quiet";
  parent.append(found);
}

function number(value) { const found = typeof value === "string" ? Number(value) : value; return Number.isFinite(found) ? found : null; }
const NUMBERS = new Set(["long", "int", "real", "decimal"]);
const NAMED = new Set(["string", "guid", "bool"]);

export function draw(parent, render, columns, rows, remark) {
  parent.replaceChildren();
  const kind = render.visualization, isTime = columns.findIndex(c => c.kind === "datetime");
  const byName = columns.findIndex(c => c.name === String(render.xcolumn ?? ""));
  const x = byName >= 0 ? byName : ["timechart", "areachart", "linechart", "stackedareachart"].includes(kind) && isTime >= 0 ? isTime : 0;
  const asked = String(render.ycolumns ?? "").split(",").map(each => each.trim()).filter(Boolean);
  const ys = columns.map((c, i) => i).filter(i => i !== x && NUMBERS.has(columns[i].kind) && (!asked.length || asked.includes(columns[i].name))).slice(0, MOST);
  if (!ys.length || !rows.length) { note(parent, "There is no number to draw."); return; }
  if (render.title) note(parent, String(render.title), "strong");
  const isContinuous = ["datetime", ...NUMBERS].includes(columns[x].kind);
  const data = {x: columns[x], ...split(columns, rows, x, ys, kind === "scatterchart"), title: `${columns[ys[0]].name} by ${columns[x].name}`};
  const stacked = kind === "stackedareachart" || render.kind === "stacked";
  if (kind === "piechart") pie(parent, data);
  else if (["barchart", "columnchart"].includes(kind) || (!isContinuous && kind !== "scatterchart")) bars(parent, data, kind === "barchart", stacked);
  else plotted(parent, kind, data, stacked);
  if (data.left) note(parent, `${data.left} more series are not drawn.`);
  if (remark) note(parent, remark);
}

// The values of each series by the value of x, both in the order of the rows. Points may share an x.
function split(columns, rows, x, ys, points) {
  const by = columns.findIndex((c, i) => i !== x && !ys.includes(i) && NAMED.has(c.kind)), time = columns[x].kind === "datetime";
  const series = new Map(), left = new Set(), keys = new Map();
  for (const [i, row] of rows.entries()) for (const y of ys) {
    const key = points ? String(i) : String(row[x]);
    const label = by < 0 ? columns[y].name : ys.length > 1 ? `${row[by]} · ${columns[y].name}` : String(row[by]);
    if (!series.has(label)) { if (series.size === LIGHT.length) { left.add(label); continue; } series.set(label, new Map()); }
    keys.set(key, row[x]);
    series.get(label).set(key, number(row[y]));
  }
  const at = value => time ? Date.parse(value) / 1e3 : number(value);
  // Groups come in any order; sorted, a series has the same color each time the query runs.
  const sorted = by < 0 ? series : new Map([...series].sort(([a], [b]) => a < b ? -1 : 1));
  return {series: sorted, keys, at, time, left: left.size};
}

function plotted(parent, kind, data, stacked) {
  const colors = palette(), area = kind.includes("area"), points = kind === "scatterchart";
  const places = [...data.keys].map(([key, value]) => [data.at(value), key]).filter(([at]) => at != null && !Number.isNaN(at)).sort((a, b) => a[0] - b[0]);
  const xs = places.map(([at]) => at), labels = [...data.series.keys()];
  let lines = [...data.series.values()].map(each => places.map(([, key]) => each.get(key) ?? null));
  // Stacked areas are sums, drawn from the highest to the lowest.
  if (stacked) lines = lines.map((_, i) => places.map((__, at) => lines.slice(0, i + 1).reduce((sum, line) => sum + (line[at] ?? 0), 0)));
  const order = lines.map((_, i) => i);
  if (stacked) order.reverse();
  fitted(parent, `${kind} of ${data.title}: ${labels.join(", ")}`, width => new uPlot({
    width, height: 300, tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
    scales: {x: {time: data.time}, ...(area ? {y: {range: (_u, min, max) => [Math.min(min, 0), max * 1.05 || 1]}} : {})}, axes: axes(data.time),
    series: [{label: data.x.name, value: (_u, v) => v == null ? "" : data.time ? clock(v) : short(v)}, ...order.map(i => ({
      label: labels[i], stroke: colors[i], width: points ? 0 : 2, fill: area ? colors[i] + (stacked ? "aa" : "44") : undefined, spanGaps: true, value: (_u, v) => v == null ? "" : short(v),
      paths: points ? () => null : undefined, points: {show: points || xs.length < 60, size: points ? 6 : 5, fill: colors[i]}}))],
  }, [xs, ...order.map(i => lines[i])], parent));
}

function bars(parent, data, lying, stacked) {
  const colors = palette(), ink = css("--ink"), soft = css("--soft"), line = css("--line");
  const keys = [...data.keys.keys()].slice(0, MOST_BARS), series = [...data.series];
  const value = (key, values) => values.get(key) ?? 0, sums = keys.map(key => series.reduce((sum, [, values]) => sum + Math.max(value(key, values), 0), 0));
  const most = Math.max(...(stacked ? sums : keys.flatMap(key => series.map(([, values]) => value(key, values)))), 1e-9);
  const name = key => data.time ? key.slice(0, 16).replace("T", " ") : key === "null" ? "null" : key;
  const lanes = stacked ? 1 : series.length, wide = Math.max(parent.clientWidth - 20, 300), named = lying ? Math.min(200, wide / 3) : 56;
  const band = lying ? lanes * 18 + 10 : (wide - named) / keys.length, height = lying ? keys.length * band + 24 : 300, deep = height - 40;
  const svg = element("svg", {viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": `bars of ${data.title}: ${keys.slice(0, 20).map((key, i) => `${name(key)} ${short(sums[i])}`).join(", ")}`});
  const step = nice(most / 4), length = lying ? wide - named - 70 : deep;
  for (let tick = 0; tick <= most; tick += step) {
    const at = tick / most * length;
    const place = lying ? {x1: named + at, x2: named + at, y1: 0, y2: height - 20} : {x1: named, x2: wide, y1: 10 + deep - at, y2: 10 + deep - at};
    svg.append(element("line", {...place, stroke: line}), lying ? element("text", {x: place.x1, y: height - 4, "font-size": 11, "text-anchor": "middle", fill: soft}, short(tick))
      : element("text", {x: named - 8, y: place.y1 + 4, "font-size": 11, "text-anchor": "end", fill: soft}, short(tick)));
  }
  const fits = lying ? Math.floor(named / 7) : Math.max(Math.floor(band / 6.5), 3), every = lying ? 1 : Math.ceil(26 / band);
  keys.forEach((key, i) => {
    let base = 0;
    series.forEach(([label, values], j) => {
      const found = value(key, values), size = Math.max(found, 0) / most * length, lane = stacked ? 0 : j;
      const thick = lying ? 14 : Math.min(Math.max(band * 0.8 / lanes, 1), 80), start = lying ? i * band + lane * 18 + 4 : named + i * band + (band - lanes * thick) / 2 + lane * thick;
      const place = lying ? {x: named + base, y: start, width: Math.max(size, 0.5), height: thick} : {x: start, y: 10 + deep - base - size, width: Math.max(thick - 1, 1), height: Math.max(size, 0.5)};
      const bar = element("rect", {...place, fill: colors[j], rx: 1});
      bar.append(element("title", {}, `${name(key)}${series.length > 1 ? `, ${label}` : ""}: ${found}`));
      svg.append(bar);
      if (lying && !stacked) svg.append(element("text", {x: place.x + place.width + 6, y: place.y + 11, "font-size": 12, fill: ink}, short(found)));
      if (stacked) base += size;
    });
    const text = name(key), cut = text.length > fits ? `${text.slice(0, Math.max(fits - 1, 1))}…` : text;
    if (i % every === 0) svg.append(lying ? element("text", {x: named - 8, y: i * band + (band + 4) / 2, "text-anchor": "end", "font-size": 12, fill: ink}, cut)
      : element("text", {x: named + (i + 0.5) * band, y: deep + 27, "text-anchor": "middle", "font-size": 11, fill: ink}, cut));
  });
  parent.append(svg);
  if (series.length > 1) parent.append(legend(series.map(([label]) => label), colors));
  if (data.keys.size > keys.length) note(parent, `The first ${keys.length} of ${data.keys.size} are drawn.`);
}
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(each => each * power).find(each => each >= value);
}

function pie(parent, data) {
  const colors = palette(), [[, values]] = data.series.size === 1 ? [...data.series] : [["", new Map([...data.keys.keys()].map(key => [key, [...data.series.values()].reduce((sum, each) => sum + (each.get(key) ?? 0), 0)]))]];
  const all = [...values].map(([key, value]) => [key, Math.max(value ?? 0, 0)]), shown = all.slice(0, colors.length), rest = all.slice(colors.length);
  if (rest.length) shown.push([`${rest.length} others`, rest.reduce((sum, [, value]) => sum + value, 0)]);
  const total = shown.reduce((sum, [, value]) => sum + value, 0) || 1, words = shown.map(([label, value]) => `${label}: ${short(value)} (${(100 * value / total).toFixed(1)} %)`);
  const svg = element("svg", {viewBox: "0 0 300 300", role: "img", "aria-label": `shares of ${data.title}: ${words.join(", ")}`});
  let from = -Math.PI / 2;
  shown.forEach(([, value], i) => {
    const to = from + Math.min(value / total, 0.99999) * 2 * Math.PI;
    const [a, b] = [from, to].map(angle => `${150 + 130 * Math.cos(angle)} ${150 + 130 * Math.sin(angle)}`);
    const part = element("path", {d: `M150 150 L${a} A130 130 0 ${to - from > Math.PI ? 1 : 0} 1 ${b} Z`, fill: colors[i] ?? css("--soft"), stroke: css("--paper")});
    part.append(element("title", {}, words[i]));
    svg.append(part);
    from = to;
  });
  const box = document.createElement("div");
  box.className = "pie";
  box.append(svg, legend(words, colors));
  parent.append(box);
}
