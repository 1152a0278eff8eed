// Microsoft's own analyser over KQL texts: which errors it finds, and which columns it thinks the result has.
//
// Called with the folder of the npm package; reads {"tables": {name: "(a:long, b:string)"}, "queries": [text, ...]} from
// standard input and writes one list of {errors: [{code, message, start}], columns: [[name, type], ...]} in their order.
const fs = require("fs");
const path = require("path");

const folder = process.argv[2];
require(path.join(folder, "bridge.min.js"));
require(path.join(folder, "Kusto.Language.Bridge.min.js"));
const language = globalThis.Kusto.Language;
const symbols = language.Symbols;

const asked = JSON.parse(fs.readFileSync(0, "utf8"));

if (asked.names) {
  // The names of everything that is documented and not obsolete.
  const names = (all) => {
    const found = [];
    for (const each = Bridge.getEnumerator(all); each.moveNext(); ) {
      if (!each.Current.IsHidden && !each.Current.IsObsolete) found.push(each.Current.Name);
    }
    return found;
  };
  const { Functions, Aggregates, PlugIns } = language;
  process.stdout.write(
    JSON.stringify({ functions: [...names(Functions.All), ...names(Aggregates.All)], plugins: names(PlugIns.All) }),
  );
  process.exit(0);
}
const members = [];
for (const [name, schema] of Object.entries(asked.tables)) {
  members.push(new symbols.TableSymbol.$ctor7(name, schema, null));
  members.push(new symbols.ExternalTableSymbol.$ctor4(name, schema, null));
}
const database = new symbols.DatabaseSymbol.$ctor1("db", members);
const globals = language.GlobalState.Default.WithDatabase(database);

const answers = asked.queries.map((text) => {
  const code = language.KustoCode.ParseAndAnalyze(text, globals);
  const found = code.GetDiagnostics();
  const errors = [];
  for (let index = 0; index < found.Count; index++) {
    const each = found.getItem(index);
    if (each.Severity === "Error") errors.push({ code: each.Code, message: each.Message, start: each.Start });
  }
  const columns = [];
  const type = code.ResultType;
  if (type && type.Columns) {
    for (let index = 0; index < type.Columns.Count; index++) {
      const column = type.Columns.getItem(index);
      columns.push([column.Name, column.Type.Name]);
    }
  }
  return { errors, columns };
});
fs.writeFileSync(1, JSON.stringify(answers));
