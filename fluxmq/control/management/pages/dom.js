// Elements, tables and forms. Text is always set as text: nothing from the broker becomes markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name === "class") made.className = value;
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== ""));
  return made;
}

export function number(value) {
  return typeof value === "number" ? value.toLocaleString("en") : "–";
}

export function bytes(value) {
  if (typeof value !== "number") return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
}

export function badge(text, kind = "") {
  return el("span", { class: `badge ${kind}` }, text);
}

// columns: [{title, cell(row), number, sort}]; sorting: {by, reverse, change(by)}
export function table(caption, columns, rows, sorting) {
  const head = columns.map((column) => {
    const kind = column.number ? { class: "number", scope: "col" } : { scope: "col" };
    if (!sorting || !column.sort) return el("th", kind, column.title);
    const active = sorting.by === column.sort;
    kind["aria-sort"] = active ? (sorting.reverse ? "descending" : "ascending") : "none";
    const arrow = active ? (sorting.reverse ? " ↓" : " ↑") : "";
    return el("th", kind, el("button", { type: "button", on: { click: () => sorting.change(column.sort) } }, column.title + arrow));
  });
  const body = rows.map((row) => el("tr", {}, columns.map((column) => {
    const found = column.cell(row);
    return el("td", column.number ? { class: "number" } : {}, typeof found === "number" ? number(found) : found);
  })));
  if (!rows.length) body.push(el("tr", {}, el("td", { colSpan: columns.length, class: "soft" }, "None.")));
  return el("div", { class: "scroll" }, el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

// fields: [{name, label, type, value, options, required, wide, hint}]; types: text, password, number, check, select, area
export function form(fields, submit, act, kind = "") {
  const inputs = {};
  const labels = fields.map((field) => {
    const common = { name: field.name, required: Boolean(field.required) };
    let input;
    if (field.type === "select") {
      input = el("select", common, field.options.map((option) => el("option", { value: option, selected: option === field.value }, option)));
      if (field.change) input.addEventListener("change", () => field.change(input.value));
    } else if (field.type === "area") input = el("textarea", { ...common, placeholder: field.hint });
    else input = el("input", { ...common, type: field.type === "check" ? "checkbox" : field.type || "text", placeholder: field.hint, autocomplete: "off" });
    if (field.type === "check") input.checked = Boolean(field.value);
    else if (field.value !== undefined && field.type !== "select") input.defaultValue = field.value;
    inputs[field.name] = input;
    const text = el("span", {}, field.label);
    if (field.type === "check") return el("label", { class: "check" }, input, text);
    return el("label", field.wide ? { class: "wide" } : {}, text, input);
  });
  const button = el("button", { type: "submit", class: kind }, submit);
  const made = el("form", {}, labels, el("div", {}, button));
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = {};
    for (const field of fields) values[field.name] = field.type === "check" ? inputs[field.name].checked : inputs[field.name].value;
    button.disabled = true;
    try { await act(values, made); } finally { button.disabled = false; }
  });
  made.inputs = inputs;
  return made;
}

export function numbers(entries) {
  return el("dl", { class: "numbers" }, entries.map(([title, value, series]) =>
    el("div", {}, el("dt", {}, title), el("dd", {}, value), series ? sparkline(series, title) : "")));
}

export function sparkline(values, title) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: the last ${values.length} values`);
  const most = Math.max(...values, 1e-9);
  const step = values.length > 1 ? 100 / (values.length - 1) : 100;
  const line = document.createElementNS(space, "polyline");
  line.setAttribute("points", values.map((value, at) => `${(at * step).toFixed(1)},${(19 - 18 * value / most).toFixed(1)}`).join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}

// Ask for the name of what will be destroyed; resolve to whether it was given.
export function confirmed(what, name) {
  return new Promise((resolve) => {
    const dialog = el("dialog", { "aria-label": what });
    const answer = (value) => { dialog.close(); dialog.remove(); resolve(value); };
    const asked = form([{ name: "name", label: `${what}. Enter “${name}” to go on.`, wide: true, required: true }], what.split(" ")[0],
      async (values) => {
        if (values.name === name) { answer(true); return; }
        asked.inputs.name.value = "";
        asked.inputs.name.focus();
      }, "danger");
    asked.append(el("div", {}, el("button", { type: "button", class: "plain", on: { click: () => answer(false) } }, "Cancel")));
    dialog.append(asked);
    dialog.addEventListener("cancel", () => answer(false));
    document.body.append(dialog);
    dialog.showModal();
    asked.inputs.name.focus();
  });
}
