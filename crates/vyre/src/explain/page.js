"use strict";
// Draws the data of the page. Lists have only the rows that can be seen, so that large programs stay quick.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);

// Elements and figures.

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

const words = (name) => name.replaceAll("_", " ");
const color = (index) => `var(--c${index % 8})`;
const swatch = (index) => el("span", { class: "swatch", style: `background:${color(index)}` });

/// A color for each name, in the order in which they are met.
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
const card = (label, figure, note) =>
    el("div", { class: "card" }, el("div", { class: "label" }, label), el("div", { class: "figure" }, figure),
        el("div", { class: "note" }, note || "\u00a0"));

function tabs(names, select) {
    const buttons = names.map((name, index) => el("button", { onclick: () => turn(index) }, name));
    const turn = (index) => {
        buttons.forEach((button, other) => button.classList.toggle("on", other === index));
        select(index);
    };
    return { node: el("div", { class: "tabs" }, buttons), turn };
}

/// A list of any length. `row` makes the element of an index.
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

    /// Scrolls to a row that is not in sight.
    reveal(index, part = 3) {
        const { scrollTop: top, clientHeight: height } = this.node;
        const at = index * this.height;
        if (at < top || at + this.height > top + height) this.node.scrollTop = at - height / part;
        this.draw();
    }
}

/// A table whose columns are [name, width or null for the rest, cell, is it text].
function table(columns, rows) {
    const place = ([, width, , text]) => ({
        class: `${text ? "" : "right"} ${width ? "" : "rest"}`,
        style: width ? `width:${width}px` : "",
    });
    const list = new List("table", 28, (index) =>
        el("div", {}, columns.map((column) => {
            const cell = column[2](rows[index], index);
            return el("span", { ...place(column), title: column[3] && typeof cell === "string" && cell }, cell);
        })));
    const head = el("div", { class: "columns" }, columns.map((column) => el("span", place(column), column[0])));
    list.show(rows.length);
    return [head, list.node];
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

/// Lines of code: [text, kind ("", "added" or "removed"), line number, place in the source].
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

// A line that goes along the steps, with a mark at the one that is shown.

class Plot {
    constructor(name, values, select) {
        Object.assign(this, { name, values, at: 0 });
        this.figure = el("span", { class: "figure" });
        this.svg = el("svg", {
            preserveAspectRatio: "none",
            onclick: (event) => {
                const box = this.svg.getBoundingClientRect();
                select(Math.round(((event.clientX - box.left) / box.width) * (values.length - 1)));
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
        const x = (index) => 4 + (index / Math.max(1, values.length - 1)) * (width - 8);
        const y = (value) => height - 6 - (value / most) * (height - 14);
        let line = `M${x(0)} ${y(values[0])}`;
        values.slice(1).forEach((value, index) => (line += `H${x(index + 1)}V${y(value)}`));
        this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        this.svg.replaceChildren(
            el("line", { class: "axis", x1: 0, x2: width, y1: height - 6, y2: height - 6 }),
            el("path", { d: `${line}V${height - 6}H${x(0)}Z`, fill: "var(--accent)", opacity: ".10" }),
            el("path", { d: line, fill: "none", stroke: "var(--accent)", "stroke-width": "1.6" }),
            el("line", { x1: x(at), x2: x(at), y1: 0, y2: height - 6, stroke: "var(--faint)", "stroke-dasharray": "3 3" }),
            el("text", { class: "faint", x: width - 6, y: height - 11, "text-anchor": "end" }, `at most ${count(most)}`),
            el("circle", { cx: x(at), cy: y(values[at]), r: 4, fill: "var(--accent)", stroke: "var(--panel)", "stroke-width": 2 }));
        this.figure.textContent = `${count(values[at])}${share(values[0], values[at])}`;
    }
}

// A program, pass by pass.

/// The texts of a program after each step, as numbers of lines, and what each step changed.
function texts(program) {
    const all = [];
    let now = [];
    for (const step of program.steps) {
        if (step.change) {
            const next = now.slice();
            // From the end, so that what comes before stays where it is.
            for (const [at, removed, added] of step.change.toReversed()) next.splice(at, removed, ...added);
            now = next;
        }
        all.push(now);
    }
    return all;
}

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
        this.filter = tabs(["Changes", "All", "Selection"], (index) => {
            this.listed = index;
            this.list();
        });
        const measures = program.measures;
        const along = (name) => program.steps.map((step) => step.measures[measures.indexOf(name)]);
        const go = (step) => this.go(step);
        this.plots = [
            new Plot("estimated cost", program.steps.map((step) => step.cost), go),
            new Plot("instructions", along("instructions"), go),
            new Plot("memory operations", along("memory_ops"), go),
            new Plot("values alive at once", along("register_pressure"), go),
        ];
        this.detail = el("section", { class: "panel detail" });
        this.code_title = el("span", { class: "soft" });
        const { file } = program;
        this.node = el("div", { class: "view" },
            el("div", { class: "column", style: "width:320px;flex:none" },
                panel([this.filter.node], 1, this.steps.node)),
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
        const { steps, explained } = this.program;
        if (this.listed === 2) {
            this.rows = explained.passes;
        } else {
            this.rows = [];
            let round = 0;
            steps.forEach((step, index) => {
                if (this.listed === 0 && step.verdict === "unchanged") return;
                if (step.round !== round) this.rows.push(`round ${(round = step.round)}`);
                this.rows.push(index);
            });
        }
        this.steps.show(this.rows.length);
        this.reveal();
    }

    row(row) {
        if (typeof row === "string") return el("div", { class: "heading" }, row);
        if (typeof row === "object") {
            return el("div", { class: row.selected ? "changed" : "unchanged", title: row.why },
                el("span", { class: "dot" }), el("span", { class: "mono" }, row.pass), el("span", { class: "why" }, row.why));
        }
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

    /// The next step that changed something, or the one before.
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
            if (from === to && name !== "cost") return;
            const trend = to < from ? "down" : to > from ? "up" : "";
            const text = from === to ? count(to) : `${count(from)} → ${count(to)}`;
            chips.push(el("span", {}, `${words(name)} `, el("b", { class: trend }, text + share(from, to))));
        };
        chip("cost", before.cost, step.cost);
        measures.forEach((name, index) => chip(name, before.measures[index], step.measures[index]));
        let said = `${explained.telemetry.hot ? "hot" : "cold"} program, profile ${explained.profile}: ` +
            `${plural(explained.passes.filter((pass) => pass.selected).length, "pass", "passes")} of ` +
            `${explained.passes.length} selected, ${plural(explained.rounds, "round")}`;
        if (this.step > 0 && why) said = `selected: ${why.why.replace(/^yes: /, "")}`;
        if (step.refused) said += `; its result was undone, because it would raise the cost to ${count(step.refused)}`;
        const verdicts = { changed: "changed", unchanged: "changed nothing", refused: "refused" };
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
            this.code_title.textContent = "of the optimized program";
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
        // The source follows, to what the first change was made from.
        const changed = shown.find(([, kind, , place]) => kind && place);
        if (reveal) this.link(changed ? changed[3] : 0, false);
    }

    /// Marks a line of the source, and what was made of it.
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

// A pipeline: what is launched, before and after fusion, and the memory that it takes.

/// Boxes in columns, with lines between them.
function diagram(columns, edges) {
    const [wide, gap] = [154, 46];
    const places = new Map();
    const drawn = [];
    let bottom = 0;
    columns.forEach((boxes, column) => {
        let top = 8;
        for (const box of boxes) {
            const height = 28 + 18 * box.lines.length;
            const left = 8 + column * (wide + gap);
            places.set(box.id, { left, right: left + wide, middle: top + height / 2 });
            const fill = { buffer: "var(--sunken)", dropped: "none", launch: "var(--accent-soft)" }[box.kind];
            const stroke = box.kind === "launch" ? "var(--accent)" : "var(--line)";
            drawn.push(
                el("rect", { x: left, y: top, width: wide, height, rx: box.kind === "launch" ? 8 : 14, fill, stroke }),
                el("text", { class: "strong", x: left + 14, y: top + 19 }, box.name, el("title", {}, box.name)),
                ...box.lines.map((line, index) => el("text", { class: "soft", x: left + 14, y: top + 37 + 18 * index }, line)));
            top += height + 16;
        }
        bottom = Math.max(bottom, top);
    });
    const lines = edges.filter(([from, to]) => places.has(from) && places.has(to)).map(([from, to]) => {
        const [a, b] = [places.get(from), places.get(to)];
        const bend = Math.max(30, (b.left - a.right) / 2);
        return el("path", {
            d: `M${a.right} ${a.middle}C${a.right + bend} ${a.middle} ${b.left - bend} ${b.middle} ${b.left} ${b.middle}`,
            fill: "none", stroke: "var(--faint)", "stroke-width": 1.3,
        });
    });
    return el("svg", { width: 16 + columns.length * (wide + gap) - gap, height: bottom }, lines, drawn);
}

/// The launches of a pipeline; each is some dispatches, in a column of its group.
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
    // Before fusion, each dispatch is a launch, after all whose results it uses.
    const level = new Map();
    const writer = new Map();
    const alone = [...dispatches].sort((a, b) => a.dispatch - b.dispatch).map((dispatch) => {
        const after = [...dispatch.reads, ...dispatch.writes].map((name) => writer.get(name)).filter((at) => at !== undefined);
        level.set(dispatch.dispatch, Math.max(-1, ...after.map((at) => level.get(at))) + 1);
        dispatch.writes.forEach((name) => writer.set(name, dispatch.dispatch));
        return { dispatches: [dispatch.dispatch], dropped: [], group: level.get(dispatch.dispatch) };
    });
    const budget = memory.budget_bytes && memory.budget_bytes < 2 ** 60 ? `of ${bytes(memory.budget_bytes)}` : "";
    const cards = el("div", { class: "cards" },
        card("launches", `${dispatches.length} → ${launched.length}`, plural(groups.length - 1, "barrier")),
        card("bytes of buffers saved by fusion", bytes(pipeline.avoided_bytes), `${plural(pipeline.avoided_launches, "launch", "launches")} saved`),
        card("peak memory", bytes(memory.peak_bytes), budget),
        card("without sharing", bytes(memory.unshared_bytes), "memory of its own for every buffer"));
    const joins = table([
        ["dispatch", 64, (row) => String(row.dispatch)],
        ["program", 160, (row) => row.program, true],
        ["launch", 56, (row) => String(row.launch)],
        ["fused with the one before?", null, (row) => row.why || "it is the first", true],
    ], dispatches);
    return el("div", { class: "view" }, el("div", { class: "column grow" },
        cards,
        panel("Before fusion", 1, el("div", { class: "scroll" }, launch_graph(pipeline, alone))),
        panel("After fusion", 1, el("div", { class: "scroll" }, launch_graph(pipeline, launched))),
        el("div", { class: "row", style: "height:252px;flex:none" },
            panel("Decisions", 1.4, ...joins),
            panel(["Memory over time", el("span", { class: "legend" },
                el("span", {}, swatch(0), "the caller's buffers"), el("span", {}, swatch(1), "transient ones, in each barrier group"))],
            1, el("div", { class: "scroll" }, memory_plot(pipeline))))));
}

function memory_plot({ groups, memory }) {
    const [width, height] = [Math.max(520, groups.length * 24), 184];
    const most = Math.max(1, memory.unshared_bytes);
    const y = (value) => height - 4 - (value / most) * (height - 26);
    const step = (width - 10) / groups.length;
    const bars = groups.flatMap((group, index) => {
        const bar = (from, to, fill) => el("rect", {
            x: 5 + index * step + step * 0.08, width: step * 0.84, y: y(to), height: Math.max(0, y(from) - y(to)), fill,
        }, el("title", {}, `group ${index}: ${bytes(group.bytes)}, launches ${group.launches.join(", ")}`));
        return [bar(0, memory.resident_bytes, "var(--c0)"), bar(memory.resident_bytes, group.bytes, "var(--c1)")];
    });
    const level = (value, name) => [
        el("line", { x1: 0, x2: width, y1: y(value), y2: y(value), stroke: "var(--faint)", "stroke-dasharray": "4 4" }),
        el("text", { class: "soft", x: 6, y: y(value) - 5 }, `${name}: ${bytes(value)}`),
    ];
    return el("svg", { width, height }, bars,
        el("line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) }),
        level(memory.unshared_bytes, "without sharing"),
        memory.peak_bytes < memory.unshared_bytes && level(memory.peak_bytes, "peak"));
}

// A run over a graph: the steps and why they were made that way.

function graph_view(graph) {
    const { iterations } = graph;
    const of = colors();
    iterations.forEach((step) => of(step.topology));
    const [width, height] = [Math.max(900, iterations.length * 26), 210];
    const slowest = Math.max(1, ...iterations.map((step) => step.time_ns));
    const largest = Math.log1p(Math.max(1, graph.edges));
    const step = (width - 20) / Math.max(1, iterations.length);
    const x = (index) => 10 + (index + 0.5) * step;
    const y = (part) => height - 22 - part * (height - 50);
    const bars = iterations.map((row, index) => {
        const tall = (row.time_ns / slowest) * (height - 50);
        return el("rect", {
            x: x(index) - step * 0.36, width: Math.min(step * 0.72, 60), y: height - 22 - tall, height: tall, rx: 2, fill: color(of(row.topology)),
        }, el("title", {}, `step ${index}: ${row.topology}, ${time(row.time_ns)}\n${row.reason}`));
    });
    const every = Math.ceil(iterations.length / 40);
    const labels = iterations.map((_, index) => index % every === 0 &&
        el("text", { class: "faint", x: x(index) - step * 0.36 + Math.min(step * 0.72, 60) / 2, y: height - 6, "text-anchor": "middle" }, String(index)));
    const centre = (index) => x(index) - step * 0.36 + Math.min(step * 0.72, 60) / 2;
    const line = iterations.map((row, index) => `${index ? "L" : "M"}${centre(index)} ${y(Math.log1p(row.edges) / largest)}`).join("");
    const plot = el("svg", { width, height },
        el("line", { class: "axis", x1: 0, x2: width, y1: height - 22, y2: height - 22 }), bars, labels,
        el("text", { class: "faint", x: 4, y: 12 }, `up to ${time(slowest)}, and ${count(graph.edges)} edges on a logarithmic scale`),
        el("path", { d: line, fill: "none", stroke: "var(--text)", "stroke-width": 1.5 }),
        iterations.map((row, index) => el("circle", { cx: centre(index), cy: y(Math.log1p(row.edges) / largest), r: 2.5, fill: "var(--text)" })));
    const names = [...new Set(iterations.map((row) => row.topology))];
    const legend = el("span", { class: "legend" },
        names.map((name) => el("span", {}, swatch(of(name)), name)),
        el("span", {}, "— edges of the frontier, logarithmic"));
    const rows = table([
        ["step", 40, (_, index) => String(index)],
        ["nodes", 84, (row) => count(row.nodes)],
        ["edges", 96, (row) => count(row.edges)],
        ["density", 66, (row) => `${(row.density_bps / 100).toFixed(2)} %`],
        ["topology", 156, (row) => el("span", {}, swatch(of(row.topology)), row.topology), true],
        ["examined", 96, (row) => count(row.examined)],
        ["time", 78, (row) => time(row.time_ns)],
        ["memory", 78, (row) => bytes(row.bytes)],
        ["why", null, (row) => row.reason, true],
    ], iterations);
    return el("div", { class: "view" }, el("div", { class: "column grow" },
        el("div", { class: "cards" },
            card("result", graph.result, graph.verified ? "verified" : ""),
            card("graph", `${count(graph.nodes)} nodes`, `${count(graph.edges)} edges`),
            card("time", time(graph.elapsed_ns), `on ${graph.device}`),
            card("graph ready after", time(graph.built_ns), graph.from_cache ? "from the cache" : "built")),
        panel(["Time of each step", legend], "none", el("div", { class: "scroll", style: "flex:none" }, plot)),
        panel("Steps", 1, ...rows)));
}

// A queue that was drained.

function megakernel_view(run, slices, drains) {
    const drain = (slice) => ["", "first", "second"][drains.filter((drain) => drain.ts <= slice.ts).length];
    const latency = run.latency_ns || {};
    const of = colors();
    const kernels = [...run.kernels].sort((a, b) => b.time_ns - a.time_ns);
    const all = kernels.reduce((sum, kernel) => sum + kernel.time_ns, 0) || 1;
    const kernel_rows = table([
        ["kernel", 230, (row) => el("span", { class: "mono" }, row.name), true],
        ["units", 90, (row) => count(row.units)],
        ["launches", 74, (row) => count(row.launches)],
        ["time", 84, (row) => time(row.time_ns)],
        ["share", null, (row) => el("span", {
            style: `display:inline-block;height:10px;border-radius:2px;background:var(--c0);width:${(row.time_ns / all) * 90}%`,
        }), true],
    ], kernels);
    const slice_rows = table([
        ["slice", 44, (_, index) => String(index)],
        ["drain", 58, drain, true],
        ["at", 84, (row) => time(row.ts * 1e3)],
        ["time", 84, (row) => time(row.dur * 1e3)],
        ["items", 74, (row) => count(row.args.items)],
        ["topology", 130, (row) => el("span", {}, swatch(of(row.args.topology)), row.args.topology), true],
        ["why this topology", 220, (row) => row.args.topology_why, true],
        ["mode", 84, (row) => row.args.mode, true],
        ["why this mode", null, (row) => row.args.mode_why, true],
    ], slices);
    return el("div", { class: "view" }, el("div", { class: "column grow" },
        el("div", { class: "cards" },
            card("items of the second drain", count(run.items), `${time(run.elapsed_ns / Math.max(1, run.items))} each, on ${run.device}`),
            card("time", time(run.elapsed_ns), `${time(run.device_ns)} in launches; ${time(run.first_elapsed_ns)} the first time`),
            card("launches", count(run.launches), `between ${count(run.groups)} barriers`),
            card("latency", time(latency.p50 || 0), `${time(latency.p99 || 0)} for 99 %`),
            card("workers busy", `${((run.occupancy || 0) * 100).toFixed(0)} %`, ""),
            card("fused, left out", `${count(run.fused)}, ${count(run.pruned)}`, `${count(run.interpreted)} interpreted`),
            card("hits, failures", `${count(run.hits)}, ${count(run.failures)}`, "")),
        panel("Slices of both drains: what was decided, and why", 1, ...slice_rows),
        panel("Kernels of the second drain", 1, ...kernel_rows)));
}

// What happened when: a track for each thread of the host and each worker of the device.

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

    /// What contains others stands in a row above theirs.
    static rows(events) {
        const [open, rows] = [[], []];
        for (const event of events.sort((a, b) => a.ts - b.ts || b.dur - a.dur)) {
            // What begins when another ends is not inside it, however times were rounded.
            while (open.length && open.at(-1) <= event.ts + 1e-3) open.pop();
            (rows[open.length] ||= []).push(event);
            open.push(event.ts + event.dur);
        }
        return rows;
    }

    draw() {
        const { width, height } = this.canvas.parentNode.getBoundingClientRect();
        if (!width || !height) return;
        const scale = devicePixelRatio;
        [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
        const style = getComputedStyle(document.documentElement);
        const paint = (name) => style.getPropertyValue(name);
        const fills = Array.from({ length: 8 }, (_, index) => paint(`--c${index}`));
        const context = this.canvas.getContext("2d");
        context.scale(scale, scale);
        context.font = `12px ${paint("--sans")}`;
        context.textBaseline = "middle";
        this.left = 150;
        const x = (ts) => this.left + ((ts - this.from) / (this.until - this.from)) * (width - this.left);

        // Times, at round distances.
        const raw = ((this.until - this.from) / (width - this.left)) * 110;
        const power = 10 ** Math.floor(Math.log10(raw));
        const every = [1, 2, 5, 10].map((factor) => factor * power).find((distance) => distance >= raw);
        for (let at = Math.ceil(this.from / every) * every; at < this.until; at += every) {
            context.fillStyle = paint("--line");
            context.fillRect(x(at), 0, 1, height);
            context.fillStyle = paint("--faint");
            context.fillText(time(at * 1e3), x(at) + 5, 12);
        }

        this.hits = [];
        let top = 26;
        for (const track of this.tracks) {
            context.fillStyle = paint("--soft");
            context.fillText(track.name, 14, top + 9, this.left - 20);
            for (const row of track.rows) {
                // The first that may be seen: events of a row do not overlap.
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
                    // What would be painted over the same pixel is left out.
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

    /// Shows another part; what is asked for stays within the whole.
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
            dragged = { x: event.clientX, from: this.from, until: this.until, width: at(event).width };
            this.canvas.setPointerCapture(event.pointerId);
        });
        this.canvas.addEventListener("pointerup", () => (dragged = null));
        this.canvas.addEventListener("dblclick", () => this.move(0, this.end));
        this.canvas.addEventListener("pointerleave", (event) => show_tip(event));
        this.canvas.addEventListener("pointermove", (event) => {
            if (dragged) {
                const by = ((dragged.x - event.clientX) / dragged.width) * (dragged.until - dragged.from);
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

// The page: a view for each thing that there is to see.

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

// Many programs are chosen from a list.
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
