"use strict";
// Renders the data of the page. Lists are virtualized: only visible rows exist, so that large programs render quickly.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);

// Elements and number formats.

function el(tag, properties, ...children) {
    const svg = ["svg", "path", "rect", "line", "circle", "text", "g", "title"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
        if (value === undefined || value === null || value === false) continue;
        if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
        else if (name === "class") node.setAttribute("class", value);
        else node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
}

const count = (number) => Math.round(number).toLocaleString("en").replaceAll(",", "\u2009");
const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

function time(ns) {
    if (ns < 1e3) return `${Math.round(ns)} ns`;
    if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
    if (ns < 1e9) return `${(ns / 1e6).toFixed(ns < 1e8 ? 2 : 0)} ms`;
    return `${(ns / 1e9).toFixed(2)} s`;
}

function bytes(number) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (number >= 1024 && unit + 1 < units.length) {
        number /= 1024;
        unit += 1;
    }
    return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

function share(before, after) {
    if (!before || before === after) return "";
    const percent = ((after - before) / before) * 100;
    return ` (${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(1)} %)`;
}

const percent = (part) => `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
/// Strips the decision from a reason: `no: …`, `selected: …`.
const reason = (why) => why.replace(/^(yes|no|selected|not selected|fused|not fused): /, "");
const words = (name) => name.replaceAll("_", " ");
const color = (index) => `var(--c${index % 8})`;
const swatch = (index) => el("span", { class: "swatch", style: `background:${color(index)}` });

/// Assigns colors to names in the order of first use.
function colors() {
    const known = new Map();
    return (name) => {
        if (!known.has(name)) known.set(name, known.size);
        return known.get(name);
    };
}

const tip = $(".tip");
function show_tip(event, ...content) {
    tip.replaceChildren(...content);
    tip.style.display = content.length ? "block" : "none";
    const { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
}

const panel = (title, flex, ...children) =>
    el("section", { class: "panel", style: `flex:${flex}` }, title && el("div", { class: "title" }, title), ...children);
const note = (...text) => el("div", { class: "note" }, ...text);
const card = (label, figure, note, kind = "") =>
    el("div", { class: `card ${kind}` }, el("div", { class: "label" }, label), el("div", { class: "figure" }, figure),
        el("div", { class: "note" }, note || "\u00a0"));

function tabs(names, select) {
    const buttons = names.map((name, index) => el("button", { onclick: () => turn(index) }, name));
    const turn = (index) => {
        buttons.forEach((button, other) => button.classList.toggle("on", other === index));
        select(index);
    };
    return { node: el("div", { class: "tabs" }, buttons), turn };
}

/// A virtualized list. `row` makes the element of an index.
class List {
    constructor(kind, height, row) {
        this.height = height;
        this.row = row;
        this.length = 0;
        this.inner = el("div");
        this.node = el("div", { class: `list ${kind}`, tabindex: "-1", onscroll: () => this.draw() }, this.inner);
        new ResizeObserver(() => this.draw()).observe(this.node);
    }

    show(length, widest) {
        this.length = length;
        this.inner.style.height = `${length * this.height}px`;
        this.inner.style.width = widest ? `calc(${widest}ch + 110px)` : "";
        this.draw();
    }

    draw() {
        const first = Math.max(0, Math.floor(this.node.scrollTop / this.height) - 4);
        const last = Math.min(this.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / this.height) + 4);
        const rows = [];
        for (let index = first; index < last; index++) {
            const row = this.row(index);
            row.classList.add("item");
            row.style.top = `${index * this.height}px`;
            row.style.height = `${this.height}px`;
            rows.push(row);
        }
        this.inner.replaceChildren(...rows);
    }

    /// Scrolls a row into view.
    reveal(index, part = 3) {
        const { scrollTop: top, clientHeight: height } = this.node;
        const at = index * this.height;
        if (at < top || at + this.height > top + height) this.node.scrollTop = at - height / part;
        this.draw();
    }
}

/// Rows per page of a table; scrolling to its end appends a page.
const PAGE_OF_ROWS = 400;

/// A table with columns [name, cell of a row and its index, kind]: "number" unless it is "text", "wrapped" (text of any length) or "bar".
function table(columns, rows) {
    const kind = (column) => column[2] || "number";
    const head = el("tr", {}, columns.map((column) => el("th", { class: kind(column) }, column[0])));
    const body = el("tbody");
    const end = el("div");
    let shown = 0;
    const more = () => {
        const page = rows.slice(shown, shown + PAGE_OF_ROWS).map((row, at) => el("tr", {}, columns.map((column) =>
            el("td", { class: kind(column), "data-label": column[0] }, column[1](row, shown + at)))));
        shown += page.length;
        body.append(...page);
    };
    more();
    new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && more()).observe(end);
    return el("div", { class: "table" }, el("table", {}, el("thead", {}, head), body), end);
}

/// A bar and its percentage.
const share_bar = (part) => [el("span", { class: "share", style: `width:${(part * 75).toFixed(1)}%` }), percent(part)];

// Charts.

/// A chart redrawn for each width of at least `least`. `draw` returns height and elements.
function chart(least, draw) {
    const svg = el("svg", { role: "img" });
    const box = el("div", { class: "chart" }, svg);
    let drawn = 0;
    new ResizeObserver(() => {
        const width = Math.max(least, box.clientWidth - 24);
        if (!box.clientWidth || width === drawn) return;
        drawn = width;
        const [height, ...elements] = draw(width);
        svg.setAttribute("width", width);
        svg.setAttribute("height", height);
        svg.replaceChildren(...elements.flat(3).filter(Boolean));
    }).observe(box);
    return box;
}

/// About four round tick values from 0 to at least `most`; `base` is the base of the units.
function ticks(most, base = 10) {
    const raw = Math.max(most, 1e-9) / 4;
    const power = base ** Math.floor(Math.log(raw) / Math.log(base));
    const factors = base === 10 ? [1, 2, 5, 10] : Array.from({ length: 11 }, (_, digit) => 2 ** digit);
    const step = factors.map((factor) => factor * power).find((distance) => distance >= raw * 0.999);
    return Array.from({ length: Math.ceil((most / step) * 0.999) + 1 }, (_, index) => index * step);
}

/// Unit of a time, and its nanoseconds.
function time_unit(ns) {
    return [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]].findLast(([, unit]) => ns >= unit) || ["ns", 1];
}

/// A labelled y axis: `places` are pairs of a position and a text, and lines go from `from` to `until`.
function y_axis(name, places, from, until) {
    return [
        el("text", { class: "axis-name", x: 0, y: 12 }, name),
        places.map(([y, text]) => [
            el("line", { class: "axis", x1: from, x2: until, y1: y, y2: y }),
            el("text", { class: "tick", x: from - 6, y: y + 4, "text-anchor": "end" }, text),
        ]),
    ];
}

const pen = document.createElement("canvas").getContext("2d");
/// Width of a text in charts.
function text_width(text, weight = 400) {
    pen.font = `${weight} 12px ${getComputedStyle(document.documentElement).getPropertyValue("--sans")}`;
    return pen.measureText(text).width;
}

// Code.

const TOKENS = new RegExp(
    [
        String.raw`(?<comment>//.*|^\s*;.*)`,
        String.raw`(?<string>"(?:[^"\\]|\\.)*")`,
        String.raw`(?<value>%[\w.]+)`,
        String.raw`(?<number>\b(?:0x[\da-f_]+|\d[\d.]*(?:e[+-]?\d+)?)\w*\b)`,
        String.raw`(?<keyword>\b(?:program|pipeline|const|read|write|read_write|uniform|workgroup|private|atomic|if|else|switch|case|default|loop|region|yield|break|continue|return|trap|run|in|out|inout|transient|elements|grid|launch|fast|budget|fn|var|let|struct|override)\b)`,
    ].join("|"), "gi");

function highlighted(text) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(TOKENS)) {
        if (match.index > end) parts.push(text.slice(end, match.index));
        const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
        parts.push(el("span", { class: kind === "number" ? "number-token" : kind }, match[0]));
        end = match.index + match[0].length;
    }
    parts.push(text.slice(end));
    return parts;
}

/// Lines of code: [text, kind ("", "added" or "removed"), line number, source line].
class Code {
    constructor(on_place) {
        this.lines = [];
        this.place = 0;
        this.list = new List("code", 20, (index) => {
            const [text, kind, number, place] = this.lines[index];
            const linked = place && place === this.place ? " linked" : "";
            const mark = kind === "added" ? "+" : kind === "removed" ? "−" : "";
            return el("div", { class: kind + linked, onclick: () => place && on_place(place) },
                el("span", { class: "number" }, number ? String(number) : ""),
                el("span", { class: "mark" }, mark),
                el("span", { class: "text" }, highlighted(text)));
        });
        this.node = this.list.node;
    }

    show(lines) {
        this.lines = lines;
        this.list.show(lines.length, lines.reduce((most, line) => Math.max(most, line[0].length), 0));
    }

    link(place, reveal) {
        this.place = place;
        const at = reveal ? this.lines.findIndex((line) => line[3] === place && line[1] !== "removed") : -1;
        if (at >= 0) this.list.reveal(at);
        else this.list.draw();
    }
}

const plain = (text) => text.replace(/\n$/, "").split("\n").map((line, index) => [line, "", index + 1, index + 1]);

// A line plot over the steps, with a mark at the current step.

class Plot {
    constructor(name, values, select) {
        Object.assign(this, { name, values, at: 0, left: 0 });
        this.figure = el("span", { class: "figure" });
        this.svg = el("svg", {
            preserveAspectRatio: "none",
            onclick: (event) => {
                const box = this.svg.getBoundingClientRect();
                const part = (event.clientX - box.left - this.left) / (box.width - this.left - 6);
                select(Math.round(part * (values.length - 1)));
            },
        });
        this.node = el("section", { class: "panel plot" },
            el("div", { class: "head" }, el("b", {}, name), this.figure), this.svg);
        new ResizeObserver(() => this.draw()).observe(this.svg);
    }

    show(at) {
        this.at = at;
        this.draw();
    }

    draw() {
        const { values, at } = this;
        const { width, height } = this.svg.getBoundingClientRect();
        if (!width || !height) return;
        const most = Math.max(1, ...values);
        const left = (this.left = 14 + text_width(count(most)));
        const x = (index) => left + (index / Math.max(1, values.length - 1)) * (width - left - 6);
        const y = (value) => height - 6 - (value / most) * (height - 14);
        let line = `M${x(0)} ${y(values[0])}`;
        values.slice(1).forEach((value, index) => (line += `H${x(index + 1)}V${y(value)}`));
        this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        this.svg.replaceChildren(
            el("line", { class: "axis", x1: left - 4, x2: width, y1: height - 6, y2: height - 6 }),
            el("path", { d: `${line}V${height - 6}H${x(0)}Z`, fill: "var(--accent)", opacity: ".10" }),
            el("path", { d: line, fill: "none", stroke: "var(--accent)", "stroke-width": "1.6" }),
            el("line", { x1: x(at), x2: x(at), y1: 0, y2: height - 6, stroke: "var(--faint)", "stroke-dasharray": "3 3" }),
            el("line", { class: "axis", x1: left - 4, x2: width, y1: y(most), y2: y(most) }),
            el("text", { class: "tick", x: left - 8, y: y(most) + 4, "text-anchor": "end" }, count(most)),
            el("text", { class: "tick", x: left - 8, y: y(0) + 1, "text-anchor": "end" }, "0"),
            el("circle", { cx: x(at), cy: y(values[at]), r: 4, fill: "var(--accent)", stroke: "var(--panel)", "stroke-width": 2 }));
        this.figure.textContent = `${count(values[at])}${share(values[0], values[at])}`;
    }
}

// View of a program after each pass.

/// Texts of a program after each step, as line numbers, with the hunks of each step.
function texts(program) {
    const all = [];
    let now = [];
    for (const step of program.steps) {
        if (step.change) {
            const next = now.slice();
            // From the end, so that earlier positions stay valid.
            for (const [at, removed, added] of step.change.toReversed()) next.splice(at, removed, ...added);
            now = next;
        }
        all.push(now);
    }
    return all;
}

/// Meanings of the measures.
const MEASURES = {
    cost: "Σ instruction weight × expected executions",
    nodes: "IR instructions, terminators and regions",
    static_storage_bytes: "objects of length known before dispatch",
    instructions: "IR without terminators and regions",
    memory_ops: "loads, stores and atomics",
    atomic_ops: "accesses to atomic objects",
    control_flow_ops: "branches, loops and exits",
    register_pressure: "most values live at one point",
    heap_allocations: "host allocations that hold the IR",
    heap_bytes: "host memory that holds the IR",
};

class Program {
    constructor(program) {
        this.program = program;
        this.texts = texts(program);
        this.why = new Map(program.explained.passes.map((pass) => [pass.pass, pass]));
        this.changes_only = true;
        this.step = 0;
        this.shown = 0;

        this.source = new Code((place) => this.link(place, true));
        this.source.show(plain(program.source));
        this.code = new Code((place) => this.link(place, false));
        const names = ["IR", ...program.emitted.map((emitted) => emitted.name)];
        this.side = tabs(names, (index) => {
            this.shown = index;
            this.draw_code();
        });
        this.steps = new List("steps", 28, (index) => this.row(this.rows[index]));
        this.selection = el("div", { class: "selection" }, program.explained.passes.map((pass) => this.pass(pass)));
        this.filter = tabs(["Changes", "All", "Selection"], (index) => {
            this.listed = index;
            this.steps.node.hidden = index === 2;
            this.selection.hidden = index !== 2;
            if (index < 2) this.list();
        });
        const measures = program.measures;
        const along = (name) => program.steps.map((step) => step.measures[measures.indexOf(name)]);
        const go = (step) => this.go(step);
        this.plots = [
            new Plot("estimated cost", program.steps.map((step) => step.cost), go),
            new Plot("instructions", along("instructions"), go),
            new Plot("memory operations", along("memory_ops"), go),
            new Plot("register pressure", along("register_pressure"), go),
        ];
        this.detail = el("section", { class: "panel detail" });
        this.code_title = el("span", { class: "soft" });
        const { file } = program;
        this.node = el("div", { class: "view" },
            el("div", { class: "column side" },
                panel([this.filter.node], 1, this.steps.node, this.selection)),
            el("div", { class: "column grow" },
                this.detail,
                el("div", { class: "row grow" },
                    panel(["Source", el("span", { class: "soft" }, file)], 1, this.source.node),
                    panel([this.side.node, this.code_title], 1.2, this.code.node)),
                el("div", { class: "plots" }, this.plots.map((plot) => plot.node))));
        this.filter.turn(0);
        this.side.turn(0);
        this.go(0);
    }

    list() {
        this.rows = [];
        let round = 0;
        this.program.steps.forEach((step, index) => {
            if (this.listed === 0 && step.verdict === "unchanged") return;
            if (step.round !== round) this.rows.push(`round ${(round = step.round)}`);
            this.rows.push(index);
        });
        this.steps.show(this.rows.length);
        this.reveal();
    }

    /// A pass with its selection and reason.
    pass({ pass, selected, why, changes, refusals }) {
        const figure = changes ? plural(changes, "change") : refusals ? "refused" : selected ? "no change" : "";
        return el("div", { class: `pass ${selected ? "selected" : ""}` },
            el("span", { class: "dot" }),
            el("div", { class: "grow" },
                el("span", { class: "figure" }, figure),
                el("span", { class: "name mono" }, pass),
                el("div", { class: "why" }, `${selected ? "selected" : "not selected"}: ${reason(why)}`)));
    }

    row(row) {
        if (typeof row === "string") return el("div", { class: "heading" }, row);
        const { steps } = this.program;
        const step = steps[row];
        const before = steps[Math.max(0, row - 1)].cost;
        const saved = step.cost - before;
        const trend = saved < 0 ? "down" : saved > 0 ? "up" : "";
        const figure = step.verdict === "changed" && saved ? share(before, step.cost).slice(2, -1) : "";
        return el("div", { class: `${step.verdict} ${row === this.step ? "on" : ""}`, "data-row": row, onclick: () => this.go(row) },
            el("span", { class: "dot" }),
            el("span", { class: "name mono" }, step.pass),
            el("span", { class: `figure ${trend}` }, figure),
            row > 0 && el("span", { class: "figure" }, time(step.ns)));
    }

    reveal() {
        const at = this.rows.indexOf(this.step);
        if (at >= 0) this.steps.reveal(at, 2);
        else this.steps.draw();
    }

    /// Shows a step.
    go(step) {
        this.step = Math.max(0, Math.min(this.program.steps.length - 1, step));
        document.body.dataset.step = this.step;
        this.reveal();
        this.draw_detail();
        this.plots.forEach((plot) => plot.show(this.step));
        if (this.shown === 0) this.draw_code(true);
    }

    /// Goes to the next or previous step with changes.
    jump(direction) {
        const { steps } = this.program;
        let at = this.step + direction;
        while (at > 0 && at < steps.length && steps[at].verdict === "unchanged") at += direction;
        if (at >= 0 && at < steps.length) this.go(at);
    }

    draw_detail() {
        const { steps, measures, explained } = this.program;
        const step = steps[this.step];
        const before = steps[Math.max(0, this.step - 1)];
        const why = this.why.get(step.pass);
        const chips = [];
        const chip = (name, from, to) => {
            // The first step shows all measures.
            if (from === to && name !== "cost" && (this.step > 0 || !to)) return;
            // Growth of other measures can be intended: unrolling adds instructions to save trips.
            const trend = to < from ? "down" : to > from && name === "cost" ? "up" : "";
            const text = from === to ? count(to) : `${count(from)} → ${count(to)}`;
            chips.push(el("span", {}, `${words(name)} `, el("b", { class: trend }, text + share(from, to)),
                el("span", { class: "meaning" }, MEASURES[name])));
        };
        chip("cost", before.cost, step.cost);
        measures.forEach((name, index) => chip(name, before.measures[index], step.measures[index]));
        let said = `${explained.telemetry.hot ? "hot" : "cold"} program, profile ${explained.profile}: ` +
            `${explained.passes.filter((pass) => pass.selected).length} of ` +
            `${plural(explained.passes.length, "pass", "passes")} selected, ${plural(explained.rounds, "round")}`;
        if (this.step > 0 && why) said = `selected: ${reason(why.why)}`;
        if (step.refused) said += `; undone: cost ${count(step.refused)} > ${count(before.cost)}`;
        const verdicts = { changed: "changed", unchanged: "no change", refused: "refused" };
        this.detail.replaceChildren(
            el("div", { class: "top" },
                el("h2", {}, step.pass),
                this.step > 0 && el("span", { class: `badge ${step.verdict}` }, verdicts[step.verdict]),
                el("span", { class: "soft grow" },
                    this.step > 0 ? `round ${step.round} · step ${this.step} of ${steps.length - 1} · ${time(step.ns)}` : ""),
                el("span", {}, el("kbd", {}, "←"), " ", el("kbd", {}, "→"), el("span", { class: "soft" }, " changes  "),
                    el("kbd", {}, "j"), " ", el("kbd", {}, "k"), el("span", { class: "soft" }, " all"))),
            el("p", {}, said),
            el("div", { class: "chips" }, chips));
    }

    draw_code(reveal) {
        const { steps, lines, places, emitted } = this.program;
        if (this.shown > 0) {
            this.code_title.textContent = "emitted from the optimized program";
            this.code.show(plain(emitted[this.shown - 1].text).map(([text, kind, number]) => [text, kind, number, 0]));
            return;
        }
        const step = steps[this.step];
        const before = this.texts[Math.max(0, this.step - 1)];
        const after = this.texts[this.step];
        const shown = [];
        const push = (id, kind, number) => shown.push([lines[id], kind, number, places[id]]);
        let from = 0;
        let number = 0;
        let first = -1;
        if (this.step > 0) {
            for (const [at, removed, added] of step.change || []) {
                while (from < at) push(before[from++], "", ++number);
                if (first < 0) first = shown.length;
                for (; from < at + removed; from++) push(before[from], "removed", 0);
                for (const id of added) push(id, "added", ++number);
            }
            while (from < before.length) push(before[from++], "", ++number);
        } else {
            after.forEach((id, index) => push(id, "", index + 1));
        }
        const [added, removed] = ["added", "removed"].map((kind) => shown.filter((line) => line[1] === kind).length);
        this.code_title.textContent = this.step > 0 ? `after ${step.pass}   +${added} −${removed} lines` : "as written";
        this.code.show(shown);
        if (reveal && first >= 0) this.code.list.reveal(first);
        // Scrolls the source to the line of the first change.
        const changed = shown.find(([, kind, , place]) => kind && place);
        if (reveal) this.link(changed ? changed[3] : 0, false);
    }

    /// Marks a source line and its IR lines.
    link(place, from_source) {
        this.source.link(place, !from_source);
        this.code.link(place, from_source);
    }

    key(key) {
        const last = this.program.steps.length - 1;
        const keys = {
            ArrowRight: () => this.jump(1),
            ArrowLeft: () => this.jump(-1),
            j: () => this.go(this.step + 1),
            k: () => this.go(this.step - 1),
            Home: () => this.go(0),
            End: () => this.go(last),
        };
        if (keys[key]) keys[key]();
        return Boolean(keys[key]);
    }
}

// View of a pipeline: launches before and after fusion, decisions, and memory.

/// A layered graph: levels are columns if they fit, and rows otherwise.
function diagram(levels, edges) {
    const gap = 34;
    const wide = (box) => Math.max(70, text_width(box.name, 600), ...box.lines.map((line) => text_width(line))) + 28;
    const tall = (box) => 28 + 18 * box.lines.length;
    const sum = (sizes, between) => sizes.reduce((sum, size) => sum + size + between, -between);
    const widest = levels.map((boxes) => Math.max(0, ...boxes.map(wide)));
    const across = sum(widest, gap) + 2;
    const widest_box = Math.max(...widest);
    const stacked = Math.max(0, ...levels.map((boxes) => sum(boxes.map(() => widest_box), 16))) + 2;
    return chart(Math.min(across, stacked), (width) => {
        const is_across = across <= width;
        const [places, drawn] = [new Map(), []];
        let [level_at, end] = [1, 0];
        levels.forEach((boxes, level) => {
            let at = 1;
            for (const box of boxes) {
                const [w, h] = [is_across ? widest[level] : widest_box, tall(box)];
                const [x, y] = is_across ? [level_at, at] : [at, level_at];
                places.set(box.id, is_across
                    ? { from: [x, y + h / 2], to: [x + w, y + h / 2] } : { from: [x + w / 2, y], to: [x + w / 2, y + h] });
                at += (is_across ? h : w) + 16;
                const fill = box.kind === "launch" ? "var(--accent-soft)" : "var(--sunken)";
                const stroke = box.kind === "launch" ? "var(--accent)" : "var(--line)";
                drawn.push(
                    el("rect", { x, y, width: w, height: h, rx: box.kind === "launch" ? 8 : 14, fill, stroke }),
                    el("text", { class: "strong", x: x + 14, y: y + 19 }, box.name),
                    box.lines.map((line, index) => el("text", { class: "soft", x: x + 14, y: y + 37 + 18 * index }, line)));
                end = Math.max(end, y + h);
            }
            level_at += (is_across ? widest[level] : Math.max(0, ...boxes.map(tall))) + gap;
        });
        const lines = edges.filter(([from, to]) => places.has(from) && places.has(to)).map(([from, to]) => {
            const [[ax, ay], [bx, by]] = [places.get(from).to, places.get(to).from];
            const bend = Math.max(18, (is_across ? bx - ax : by - ay) / 2);
            const [c, d] = is_across ? [[ax + bend, ay], [bx - bend, by]] : [[ax, ay + bend], [bx, by - bend]];
            const head = is_across ? `M${bx - 7} ${by - 4}V${by + 4}` : `M${bx - 4} ${by - 7}H${bx + 4}`;
            return [
                el("path", { d: `M${ax} ${ay}C${c} ${d} ${bx} ${by}`, fill: "none", stroke: "var(--faint)", "stroke-width": 1.3 }),
                el("path", { d: `${head}L${bx} ${by}Z`, fill: "var(--faint)" }),
            ];
        });
        return [end + 2, lines, drawn];
    });
}

/// Graph of launches and buffers, by barrier group.
function launch_graph(pipeline, launches) {
    const buffers = new Map(pipeline.buffers.map((buffer) => [buffer.name, buffer]));
    const dropped = new Set(launches.flatMap((launch) => launch.dropped));
    const columns = [];
    const place = (column, box) => (columns[column] ||= []).push(box);
    const edges = [];
    const box = (name) => ({ id: `b ${name}`, kind: "buffer", name, lines: [`${buffers.get(name).role}, ${bytes(buffers.get(name).bytes)}`] });
    const placed = new Set();
    launches.forEach((launch, index) => {
        const dispatches = launch.dispatches.map((at) => pipeline.dispatches.find((dispatch) => dispatch.dispatch === at));
        const column = 2 * launch.group + 1;
        const name = dispatches.map((dispatch) => dispatch.program).join(" + ");
        const lines = [`dispatch${launch.dispatches.length > 1 ? "es" : ""} ${launch.dispatches.join(", ")}`,
            ...launch.dropped.map((buffer) => `without ${buffer}`)];
        place(column, { id: index, kind: "launch", name, lines });
        for (const dispatch of dispatches) {
            for (const name of dispatch.writes.filter((name) => !dropped.has(name))) {
                if (!placed.has(name)) place(column + 1, box(name));
                placed.add(name);
                edges.push([index, `b ${name}`]);
            }
            for (const name of dispatch.reads.filter((name) => !dropped.has(name))) {
                if (!placed.has(name)) place(0, box(name));
                placed.add(name);
                edges.push([`b ${name}`, index]);
            }
        }
    });
    return diagram(Array.from(columns, (boxes) => boxes || []), edges);
}

function pipeline_view(pipeline) {
    const { dispatches, memory, groups, launched } = pipeline;
    // Before fusion, each dispatch is a launch one level after its dependencies.
    const level = new Map();
    const writer = new Map();
    const alone = [...dispatches].sort((a, b) => a.dispatch - b.dispatch).map((dispatch) => {
        const after = [...dispatch.reads, ...dispatch.writes].map((name) => writer.get(name)).filter((at) => at !== undefined);
        level.set(dispatch.dispatch, Math.max(-1, ...after.map((at) => level.get(at))) + 1);
        dispatch.writes.forEach((name) => writer.set(name, dispatch.dispatch));
        return { dispatches: [dispatch.dispatch], dropped: [], group: level.get(dispatch.dispatch) };
    });
    const budget = memory.budget_bytes && memory.budget_bytes < 2 ** 60 ? `budget ${bytes(memory.budget_bytes)}` : "no budget";
    const cards = el("div", { class: "cards" },
        card("launches", `${dispatches.length} → ${launched.length}`, `${plural(pipeline.avoided_launches, "launch", "launches")} saved by fusion`),
        card("barriers", count(groups.length - 1), `between ${plural(groups.length, "group")} of launches`),
        card("buffers saved by fusion", bytes(pipeline.avoided_bytes), "never allocated"),
        card("peak memory", bytes(memory.peak_bytes), budget),
        card("without sharing", bytes(memory.unshared_bytes), "without memory sharing between buffers"));
    return el("div", { class: "view flow" }, el("div", { class: "column grow" },
        cards,
        el("div", { class: "diagrams" },
            panel(["Before fusion", el("span", { class: "soft" }, "one launch per dispatch")], "none", launch_graph(pipeline, alone)),
            panel(["After fusion", el("span", { class: "soft" }, plural(launched.length, "launch", "launches"))], "none", launch_graph(pipeline, launched))),
        panel(["Fusion decisions", el("span", { class: "soft" }, "each dispatch and the previous launch")], "none", join_table(pipeline)),
        panel(["Memory over time", el("span", { class: "legend" },
            el("span", {}, swatch(0), "bound buffers"), el("span", {}, swatch(1), "transient buffers"))],
        "none", memory_plot(pipeline))));
}

/// Fusion decisions: both launches, shared buffers with hazards, reason.
function join_table({ dispatches, launched }) {
    const joins = dispatches.slice(1).map((next, index) => {
        let first = index;
        while (first > 0 && dispatches[first].fused) first -= 1;
        const before = dispatches.slice(first, index + 1);
        const named = (access) => new Map(before.flatMap((stage) => stage[access].map((buffer) => [buffer, stage.program])));
        const [reads, writes] = [named("reads"), named("writes")];
        const hazards = [
            ["RAW", writes, next.reads, "writes", "reads"],
            ["WAR", reads, next.writes, "reads", "writes"],
            ["WAW", writes, next.writes, "writes", "writes"],
        ].flatMap(([name, from, to, one, other]) => to.filter((buffer) => from.has(buffer)).map((buffer) =>
            `${buffer} (${name}): ${from.get(buffer)} ${one}, ${next.program} ${other}`));
        const dropped = launched[next.launch].dropped.filter((buffer) => writes.has(buffer) && next.reads.includes(buffer));
        const kept = dropped.length ? `; no buffer for ${dropped.join(", ")}` : "";
        return {
            before: before.map(({ dispatch, program }) => `${dispatch} ${program}`).join(", "),
            next, hazards,
            why: next.fused ? `shared elements stay in their invocation or workgroup${kept}` : reason(next.why),
        };
    });
    if (!joins.length) return note("One dispatch: nothing to fuse.");
    return table([
        ["launch before", ({ before }) => before, "text"],
        ["dispatch", ({ next }) => `${next.dispatch} ${next.program}`, "text"],
        ["decision", ({ next }) => el("span", { class: `badge ${next.fused ? "" : "refused"}` }, next.fused ? "fused" : "not fused"), "text"],
        ["shared buffers", ({ hazards }) => hazards.length ? hazards.map((hazard) => el("div", {}, hazard)) : "none", "wrapped"],
        ["reason", ({ why }) => why, "wrapped"],
    ], joins);
}

function memory_plot({ groups, memory }) {
    return chart(80 + groups.length * 24, (width) => {
        const [top, bottom, left] = [30, 214, 70];
        const marks = ticks(Math.max(1, memory.unshared_bytes), 1024);
        const y = (value) => bottom - (value / marks.at(-1)) * (bottom - top);
        const step = (width - left) / groups.length;
        const wide = Math.min(step * 0.84, 120);
        const centre = (index) => left + (index + 0.5) * step;
        const bars = groups.map((group, index) => {
            const bar = (from, to, fill) => el("rect", {
                x: centre(index) - wide / 2, width: wide, y: y(to), height: Math.max(0, y(from) - y(to)), fill,
            }, el("title", {}, `group ${index}: ${bytes(group.bytes)}, launches ${group.launches.join(", ")}`));
            return [bar(0, memory.resident_bytes, "var(--c0)"), bar(memory.resident_bytes, group.bytes, "var(--c1)"),
                step > 60 && el("text", { x: centre(index), y: y(group.bytes) - 5, "text-anchor": "middle" }, bytes(group.bytes))];
        });
        const every = Math.ceil(groups.length / Math.floor((width - left) / 34));
        const labels = groups.map((_, index) => index % every === 0 &&
            el("text", { class: "tick", x: centre(index), y: bottom + 16, "text-anchor": "middle" }, String(index)));
        const unshared = y(memory.unshared_bytes);
        return [bottom + 40,
            y_axis("bytes in use", marks.map((value) => [y(value), bytes(value)]), left, width),
            bars, labels,
            el("line", { x1: left, x2: width, y1: unshared, y2: unshared, stroke: "var(--faint)", "stroke-dasharray": "4 4" }),
            el("text", { class: "soft", x: width, y: unshared - 5, "text-anchor": "end" }, `without sharing ${bytes(memory.unshared_bytes)}`),
            el("text", { class: "axis-name", x: (left + width) / 2, y: bottom + 34, "text-anchor": "middle" }, "barrier group"),
        ];
    });
}

// View of a graph run: steps with topology and reason.

function graph_view(graph) {
    const { iterations } = graph;
    const of = colors();
    iterations.forEach((step) => of(step.topology));
    const execution = (step) => Math.max(0, step.time_ns - step.compile_ns);
    const total = (part) => iterations.reduce((sum, step) => sum + part(step), 0);
    const compiling = iterations.filter((step) => step.compile_ns > 0).length;
    const names = [...new Set(iterations.map((row) => row.topology))];
    const legend = el("span", { class: "legend" },
        names.map((name) => el("span", {}, swatch(of(name)), name)),
        el("span", {}, "●— edges of the frontier"));
    const rows = table([
        ["step", (_, index) => String(index)],
        ["nodes", (row) => count(row.nodes)],
        ["edges", (row) => count(row.edges)],
        ["density", (row) => `${(row.density_bps / 100).toFixed(2)} %`],
        ["topology", (row) => el("span", {}, swatch(of(row.topology)), row.topology), "text"],
        ["edges examined", (row) => count(row.examined)],
        ["step time", (row) => time(execution(row))],
        ["compile time", (row) => row.compile_ns ? time(row.compile_ns) : "–"],
        ["device memory", (row) => bytes(row.bytes)],
        ["reason", (row) => row.reason, "wrapped"],
    ], iterations);
    const steps = iterations.length > 0 && [
        panel(["Step time, without compilation", legend], "none", step_chart(graph, execution, of)),
        panel("Steps", "1 0 auto", rows,
            note("nodes, edges: of the frontier. density: log(edges of the frontier) ÷ log(edges of the graph). edges examined: may be fewer, " +
                "where a pull stops at the first hit. step time: host and device, without the compile time of kernels that the step needed first.")),
    ];
    return el("div", { class: "view flow" }, el("div", { class: "column grow" },
        el("div", { class: "cards" },
            card("result", graph.result, graph.verified ? "verified" : "", "sentence"),
            card("nodes", count(graph.nodes), `${count(graph.edges)} edges`),
            card("elapsed time", time(graph.elapsed_ns), `on ${graph.device}`),
            iterations.length > 0 && card("step time", time(total(execution)), plural(iterations.length, "step")),
            card("compile time", time(graph.compile_ns), compiling ? `in ${compiling} of ${plural(iterations.length, "step")}` : ""),
            card("graph loaded in", time(graph.built_ns), graph.from_cache ? "from the cache" : "read and built")),
        steps || note("The algorithm has no steps over a frontier.")));
}

/// Bar chart of step times, with a line for the edges of the frontier.
function step_chart({ iterations, edges }, execution, of) {
    return chart(150 + iterations.length * 10, (width) => {
        const [top, bottom, left, right] = [28, 216, 56, width - 62];
        const slowest = Math.max(1, ...iterations.map(execution));
        const [unit, ns] = time_unit(slowest);
        const marks = ticks(slowest / ns);
        const y = (value) => bottom - (value / ns / marks.at(-1)) * (bottom - top);
        // Edges on the right axis, logarithmic.
        const powers = Math.max(1, Math.ceil(Math.log10(Math.max(2, edges))));
        const log = (value) => bottom - (Math.log10(Math.max(1, value)) / powers) * (bottom - top);
        const step = (right - left) / iterations.length;
        const wide = Math.min(step * 0.7, 60);
        const centre = (index) => left + (index + 0.5) * step;
        const bars = iterations.map((row, index) => el("rect", {
            x: centre(index) - wide / 2, width: wide, y: y(execution(row)), height: bottom - y(execution(row)), rx: 2, fill: color(of(row.topology)),
        }, el("title", {}, `step ${index}: ${row.topology}, ${time(execution(row))}\n${row.reason}`)));
        const every = Math.ceil(iterations.length / Math.floor((right - left) / 26));
        const labels = iterations.map((_, index) => index % every === 0 &&
            el("text", { class: "tick", x: centre(index), y: bottom + 16, "text-anchor": "middle" }, String(index)));
        const path = iterations.map((row, index) => `${index ? "L" : "M"}${centre(index)} ${log(row.edges)}`).join("");
        const digits = Math.ceil(powers / 5);
        const decades = Array.from({ length: Math.floor(powers / digits) + 1 }, (_, index) => index * digits);
        return [bottom + 40,
            y_axis(`step time (${unit})`, marks.map((value) => [y(value * ns), String(+value.toPrecision(3))]), left, right),
            bars, labels,
            el("path", { d: path, fill: "none", stroke: "var(--text)", "stroke-width": 1.5 }),
            iterations.map((row, index) => el("circle", { cx: centre(index), cy: log(row.edges), r: 2.5, fill: "var(--text)" })),
            decades.map((power) => el("text", { class: "tick", x: right + 8, y: log(10 ** power) + 4 }, power < 4 ? String(10 ** power) : `10${superscript(power)}`)),
            el("text", { class: "axis-name", x: width, y: 12, "text-anchor": "end" }, "edges (log scale)"),
            el("text", { class: "axis-name", x: (left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, "step"),
        ];
    });
}

const superscript = (number) => String(number).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

// View of a megakernel: two drains of the same items, before and after compilation of kernels.

function megakernel_view(run, slices, drains) {
    const drain = (slice) => drains.filter((drain) => drain.ts <= slice.ts).length;
    const per_second = (items, ns) => items / Math.max(1e-9, ns / 1e9);
    const rate = (items, ns) => `${short(per_second(items, ns))} items/s`;
    const latency = run.latency_ns || {};
    const of = colors();
    const sorted = [...run.kernels].sort((a, b) => b.time_ns - a.time_ns);
    const sum = (kernels, name) => kernels.reduce((sum, kernel) => sum + kernel[name], 0);
    const all = sum(sorted, "time_ns") || 1;
    // Kernels with the least time share a row.
    const [kernels, rest] = sorted.length > 10 ? [sorted.slice(0, 9), sorted.slice(9)] : [sorted, []];
    if (rest.length) {
        const [units, launches, time_ns] = ["units", "launches", "time_ns"].map((name) => sum(rest, name));
        kernels.push({ name: `${rest.length} others`, units, launches, time_ns });
    }
    const kernel_rows = table([
        ["kernel", (row) => el("span", { class: "mono" }, row.name), "wrapped"],
        ["units", (row) => count(row.units)],
        ["launches", (row) => count(row.launches)],
        ["time", (row) => time(row.time_ns)],
        ["share", (row) => share_bar(row.time_ns / all), "bar"],
    ], kernels);
    const ops = Object.entries(run.ops || {}).sort(([, a], [, b]) => b - a);
    const op_rows = table([
        ["operation", ([name]) => el("span", { class: "mono" }, name), "wrapped"],
        ["items", ([, items]) => count(items)],
        ["throughput", ([, items]) => rate(items, run.elapsed_ns)],
        ["share", ([, items]) => share_bar(items / Math.max(1, run.items)), "bar"],
    ], ops);
    const slice_rows = table([
        ["slice", (_, index) => String(index)],
        ["drain", drain],
        ["start", (row) => time(row.ts * 1e3)],
        ["time", (row) => time(row.dur * 1e3)],
        ["items", (row) => count(row.args.items)],
        ["throughput", (row) => rate(row.args.items, row.dur * 1e3)],
        ["topology", (row) => el("span", {}, swatch(of(row.args.topology)), row.args.topology), "text"],
        ["reason for the topology", (row) => row.args.topology_why, "wrapped"],
        ["mode", (row) => row.args.mode, "text"],
        ["reason for the mode", (row) => row.args.mode_why, "wrapped"],
    ], slices);
    const percentiles = ["p50", "p90", "p99", "max"].filter((name) => latency[name] !== undefined);
    const speedup = run.one_by_one_ns ? `${(run.one_by_one_ns / Math.max(1, run.elapsed_ns)).toFixed(1)} × of one launch per item` : "";
    return el("div", { class: "view flow" }, el("div", { class: "column grow" },
        el("div", { class: "cards" },
            card("throughput", rate(run.items, run.elapsed_ns), speedup || `second drain, on ${run.device}`, "wide"),
            percentiles.filter((name) => name !== "max").map((name) =>
                card(`latency ${name}`, time(latency[name]), { p50: "median", p90: "90 % at or below", p99: "99 % at or below" }[name])),
            card("drain time", time(run.elapsed_ns), `first drain ${time(run.first_elapsed_ns)}`),
            card("launches", count(run.launches), plural(run.groups, "barrier group")),
            card("workers busy", percent(run.occupancy || 0), "of the drain time"),
            card("hits", short(run.hits), plural(run.failures, "failure"))),
        el("div", { class: "halves" },
            panel(["Throughput of each slice", el("span", { class: "legend" },
                el("span", {}, swatch(2), "first drain: kernels are compiled meanwhile"), el("span", {}, swatch(0), "second drain"))], 1,
            slice_chart(slices, drain, per_second)),
            panel(["Latency", el("span", { class: "soft" }, "from the enqueue of an item to its completion, second drain")], 1,
                percentiles.length > 0 ? latency_chart(percentiles.map((name) => [name, latency[name]])) : note("Latency was not measured."))),
        el("div", { class: "halves" },
            panel("Operations, second drain", 1, op_rows,
                note(`${plural(run.items, "item")}: ${count(run.fused)} in fused windows, ${count(run.interpreted)} interpreted, ${count(run.pruned)} pruned.`)),
            panel("Kernels, second drain", 1, kernel_rows)),
        panel("Slices of both drains", "1 0 auto", slice_rows,
            note("slice: items that are planned and launched together. unit: an item, or a fused window of items."))));
}

/// Number with three digits and an SI suffix.
function short(number) {
    const [unit, suffix] = [[1e9, " G"], [1e6, " M"], [1e3, " k"], [1, ""]].find(([unit]) => number >= unit) || [1, ""];
    return `${+(number / unit).toPrecision(3)}${suffix}`;
}

/// Bar chart of the throughput of each slice.
function slice_chart(slices, drain, per_second) {
    if (!slices.length) return note("No slices were recorded.");
    return chart(120 + slices.length * 3, (width) => {
        const [top, bottom, left] = [28, 196, 56];
        const rates = slices.map((slice) => per_second(slice.args.items, slice.dur * 1e3));
        const marks = ticks(Math.max(1, ...rates));
        const y = (value) => bottom - (value / marks.at(-1)) * (bottom - top);
        const step = (width - left) / slices.length;
        const wide = Math.min(Math.max(1, step * 0.8), 60);
        const centre = (index) => left + (index + 0.5) * step;
        const bars = slices.map((slice, index) => el("rect", {
            x: centre(index) - wide / 2, width: wide, y: y(rates[index]), height: bottom - y(rates[index]),
            fill: color(drain(slice) < 2 ? 2 : 0),
        }, el("title", {}, `slice ${index}: ${count(slice.args.items)} items in ${time(slice.dur * 1e3)}, ${short(rates[index])} items/s`)));
        const every = Math.ceil(slices.length / Math.floor((width - left) / 40));
        const labels = slices.map((_, index) => index % every === 0 &&
            el("text", { class: "tick", x: centre(index), y: bottom + 16, "text-anchor": "middle" }, String(index)));
        return [bottom + 40, y_axis("items/s", marks.map((value) => [y(value), short(value)]), left, width), bars, labels,
            el("text", { class: "axis-name", x: (left + width) / 2, y: bottom + 34, "text-anchor": "middle" }, "slice")];
    });
}

/// Bar chart of latency percentiles.
function latency_chart(percentiles) {
    return chart(240, (width) => {
        const [top, left, bar] = [6, 44, 38];
        const bottom = top + bar * percentiles.length;
        const longest = Math.max(1, ...percentiles.map(([, ns]) => ns));
        const [unit, per_unit] = time_unit(longest);
        const marks = ticks(longest / per_unit);
        const x = (ns) => left + (ns / per_unit / marks.at(-1)) * (width - left - 76);
        return [bottom + 44,
            marks.map((value) => [
                el("line", { class: "axis", x1: x(value * per_unit), x2: x(value * per_unit), y1: top, y2: bottom }),
                el("text", { class: "tick", x: x(value * per_unit), y: bottom + 16, "text-anchor": "middle" }, String(+value.toPrecision(3))),
            ]),
            percentiles.map(([name, ns], index) => [
                el("text", { x: left - 8, y: top + bar * index + 24, "text-anchor": "end" }, name),
                el("rect", { x: left, y: top + bar * index + 8, width: x(ns) - left, height: bar - 16, rx: 2, fill: color(0) }),
                el("text", { class: "strong", x: x(ns) + 8, y: top + bar * index + 24 }, time(ns)),
            ]),
            el("text", { class: "axis-name", x: (left + width - 76) / 2, y: bottom + 34, "text-anchor": "middle" }, `latency (${unit})`)];
    });
}

// Timeline: a track for each thread of the host and each worker of the device.

class Timeline {
    constructor(events) {
        const [names, processes, tracks] = [new Map(), new Map(), new Map()];
        for (const event of events) {
            const key = `${event.pid} ${event.tid}`;
            if (event.name === "process_name") processes.set(event.pid, event.args.name);
            else if (event.name === "thread_name") names.set(key, event.args.name);
            else if (tracks.has(key)) tracks.get(key).push(event);
            else tracks.set(key, [event]);
        }
        this.tracks = [...tracks].map(([key, events]) => {
            const [{ pid, tid }] = events;
            return { pid, tid, name: `${processes.get(pid)}: ${names.get(key)}`, rows: Timeline.rows(events) };
        });
        this.tracks.sort((a, b) => a.pid - b.pid || a.tid - b.tid);
        this.end = events.reduce((end, event) => Math.max(end, (event.ts || 0) + (event.dur || 0)), 1);
        [this.from, this.until] = [0, this.end];
        this.of = colors();
        this.canvas = el("canvas");
        const box = el("div", { class: "canvas" }, this.canvas);
        this.node = el("div", { class: "view" },
            panel(["Timeline", el("span", { class: "soft" },
                `${count(events.length)} events in ${time(this.end * 1e3)} · scroll to zoom, drag to move, double-click to see all`)], 1, box));
        new ResizeObserver(() => this.draw()).observe(box);
        this.listen();
    }

    /// Places nested events in rows below their parents.
    static rows(events) {
        const [open, rows] = [[], []];
        for (const event of events.sort((a, b) => a.ts - b.ts || b.dur - a.dur)) {
            // Tolerates rounding: an event that starts at the end of another is not nested.
            while (open.length && open.at(-1) <= event.ts + 1e-3) open.pop();
            (rows[open.length] ||= []).push(event);
            open.push(event.ts + event.dur);
        }
        return rows;
    }

    draw() {
        const box = this.canvas.parentNode;
        const rows = this.tracks.reduce((rows, track) => rows + track.rows.length, 0);
        const [width, height] = [box.clientWidth, Math.max(box.clientHeight, 30 + 20 * rows + 10 * this.tracks.length)];
        if (!width || !box.clientHeight) return;
        this.canvas.style.height = `${height}px`;
        const scale = devicePixelRatio;
        [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
        const style = getComputedStyle(document.documentElement);
        const paint = (name) => style.getPropertyValue(name);
        const fills = Array.from({ length: 8 }, (_, index) => paint(`--c${index}`));
        const context = this.canvas.getContext("2d");
        context.scale(scale, scale);
        context.font = `12px ${paint("--sans")}`;
        context.textBaseline = "middle";
        this.left = Math.min(230, width / 3, 24 + Math.max(0, ...this.tracks.map((track) => text_width(track.name))));
        const x = (ts) => this.left + ((ts - this.from) / (this.until - this.from)) * (width - this.left);

        // Time axis with round ticks.
        const raw = ((this.until - this.from) / (width - this.left)) * 110;
        const power = 10 ** Math.floor(Math.log10(raw));
        const every = [1, 2, 5, 10].map((factor) => factor * power).find((distance) => distance >= raw);
        for (let at = Math.ceil(this.from / every) * every; at < this.until; at += every) {
            context.fillStyle = paint("--line");
            context.fillRect(x(at), 0, 1, height);
            context.fillStyle = paint("--faint");
            const label = time(at * 1e3);
            if (x(at) + 5 + context.measureText(label).width < width) context.fillText(label, x(at) + 5, 12);
        }

        this.hits = [];
        let top = 26;
        for (const track of this.tracks) {
            context.fillStyle = paint("--soft");
            context.fillText(track.name, 14, top + 9, this.left - 20);
            for (const row of track.rows) {
                // Binary search for the first visible event; events of a row are disjoint.
                let [low, high] = [0, row.length];
                while (low < high) {
                    const middle = (low + high) >> 1;
                    if (row[middle].ts + row[middle].dur < this.from) low = middle + 1;
                    else high = middle;
                }
                let drawn = -1;
                for (let index = low; index < row.length && row[index].ts < this.until; index++) {
                    const event = row[index];
                    const from = Math.max(this.left, x(event.ts));
                    const until = Math.min(width, Math.max(x(event.ts + event.dur), from + 1));
                    // Skips events within an already painted pixel.
                    if (until - drawn < 0.7) continue;
                    drawn = until;
                    context.fillStyle = fills[this.of(event.name) % 8];
                    context.fillRect(from, top, Math.max(0.7, until - from - 0.5), 18);
                    if (until - from > 44) {
                        context.save();
                        context.beginPath();
                        context.rect(from, top, until - from - 4, 18);
                        context.clip();
                        context.fillStyle = paint("--panel");
                        context.fillText(event.name, from + 6, top + 9.5);
                        context.restore();
                    }
                    this.hits.push([from, until, top, event]);
                }
                top += 20;
            }
            top += 10;
            context.fillStyle = paint("--line");
            context.fillRect(0, top - 6, width, 1);
        }
    }

    /// Pans and zooms, clamped to the recorded time.
    move(from, until) {
        const span = Math.min(this.end, Math.max(0.01, until - from));
        this.from = Math.max(0, Math.min(from, this.end - span));
        this.until = this.from + span;
        this.draw();
    }

    listen() {
        const at = (event) => {
            const box = this.canvas.getBoundingClientRect();
            const part = (event.clientX - box.left - this.left) / (box.width - this.left);
            return { part, ts: this.from + part * (this.until - this.from), width: box.width - this.left };
        };
        this.canvas.addEventListener("wheel", (event) => {
            event.preventDefault();
            const { ts } = at(event);
            const factor = Math.exp(event.deltaY * 0.0016);
            this.move(ts - (ts - this.from) * factor, ts + (this.until - ts) * factor);
        }, { passive: false });
        let dragged = null;
        this.canvas.addEventListener("pointerdown", (event) => {
            const { scrollTop: top } = this.canvas.parentNode;
            dragged = { x: event.clientX, y: event.clientY, top, from: this.from, until: this.until, width: at(event).width };
            this.canvas.setPointerCapture(event.pointerId);
        });
        this.canvas.addEventListener("pointerup", () => (dragged = null));
        this.canvas.addEventListener("dblclick", () => this.move(0, this.end));
        this.canvas.addEventListener("pointerleave", (event) => show_tip(event));
        this.canvas.addEventListener("pointermove", (event) => {
            if (dragged) {
                const by = ((dragged.x - event.clientX) / dragged.width) * (dragged.until - dragged.from);
                this.canvas.parentNode.scrollTop = dragged.top + dragged.y - event.clientY;
                this.move(dragged.from + by, dragged.until + by);
                return;
            }
            const box = this.canvas.getBoundingClientRect();
            const [px, py] = [event.clientX - box.left, event.clientY - box.top];
            const hit = this.hits.find(([from, until, top]) => px >= from && px <= until && py >= top && py <= top + 18);
            if (!hit) return show_tip(event);
            const { name, ts, dur, args } = hit[3];
            const more = Object.entries(args || {}).map(([key, value]) => `\n${words(key)}: ${value}`);
            show_tip(event, el("b", {}, name), `\n${time(dur * 1e3)}, from ${time(ts * 1e3)}`, ...more);
        });
    }

    key(key) {
        const span = this.until - this.from;
        const keys = {
            ArrowRight: () => this.move(this.from + span / 8, this.until + span / 8),
            ArrowLeft: () => this.move(this.from - span / 8, this.until - span / 8),
            "+": () => this.move(this.from + span / 6, this.until - span / 6),
            "-": () => this.move(this.from - span / 4, this.until + span / 4),
            Home: () => this.move(0, this.end),
        };
        if (keys[key]) keys[key]();
        return Boolean(keys[key]);
    }
}

// Page: one view per subject.

const views = [];
if (data.pipeline) views.push({ name: "Launches", node: pipeline_view(data.pipeline) });
if (data.graph) views.push({ name: "Steps", node: graph_view(data.graph) });
if (data.megakernel) {
    const slices = data.timeline.filter((event) => event.args && event.args.topology && event.args.mode);
    const drains = data.timeline.filter((event) => event.args && event.args.which && event.name.startsWith("drain "));
    views.push({ name: "Queue", node: megakernel_view(data.megakernel, slices, drains) });
}
for (const program of data.programs || []) views.push(Object.assign(new Program(program), { name: program.name }));
if (data.timeline) views.push(Object.assign(new Timeline(data.timeline), { name: "Timeline" }));

// More than four programs are selected by a list.
const listed = views.filter((view) => view instanceof Program);
const choice = listed.length > 4 && el("select", { onchange: () => turn(listed[choice.value]) },
    el("option", { value: "", disabled: true }, `${listed.length} kernels`),
    listed.map(({ program: { name, steps } }, index) => el("option", { value: String(index) }, `${name}, cost ${count(steps[0].cost)}`)));
const buttons = views.filter((view) => !choice || !listed.includes(view)).map((view) => ({
    view, node: el("button", { onclick: () => turn(view) }, view.name),
}));

let current = views[0];
function turn(view) {
    current = view;
    views.forEach((other) => other.node.classList.toggle("on", other === view));
    buttons.forEach((button) => button.node.classList.toggle("on", button.view === view));
    if (choice) choice.value = listed.includes(view) ? listed.indexOf(view) : "";
}
$("header").append(
    el("span", { class: "brand" }, "vyre"),
    el("h1", {}, data.title),
    el("span", { class: "soft grow" }, data.subtitle),
    el("nav", {}, views.length > 1 && buttons.map((button) => button.node), choice));
$("main").append(...views.map((view) => view.node));
turn(views[0]);
// `report.html#4` opens at step 4.
if (current.go && location.hash) current.go(Number(location.hash.slice(1)) || 0);
document.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && current.key && current.key(event.key)) event.preventDefault();
});
