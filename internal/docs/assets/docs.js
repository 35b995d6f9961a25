// The search of the documentation: as Site.Search, from index.json, which is loaded with the first question.
const input = document.getElementById("q");
const list = document.getElementById("found");
const root = document.body.dataset.root;
const stop = new Set(`a an and are as at be but by can do does for from has have how i if in into is it its my not of on or
so that the their them then there they this to was we what when where which who whose why will with you your`.split(/\s+/));
const endings = [["ies", "y", 5], ["sses", "ss", 6], ["ing", "", 6], ["ed", "", 5], ["es", "", 5], ["s", "", 4]];
let loading;

const load = () => (loading ??= fetch(root + "index.json").then((r) => r.json()));

function stem(word) {
	for (const [ending, by, least] of endings) {
		if (word.endsWith(ending) && word.length >= least && !word.endsWith("ss")) {
			word = word.slice(0, word.length - ending.length) + by;
			break;
		}
	}
	return word.length > 4 && word.endsWith("e") ? word.slice(0, -1) : word;
}

const words = (text) =>
	text.toLowerCase().split(/[^\p{L}\p{Nd}]+/u)
		.filter((w) => w.length > 1 && w.length <= 24 && !stop.has(w) && !/^[0-9]/.test(w)).map(stem);

function search(index, question) {
	const asked = words(question);
	const scores = new Map();
	const add = (of, part) => {
		const idf = Math.log(1 + index.pages.length / (of.length / 3));
		for (let i = 0; i + 2 < of.length; i += 3) {
			const page = parseInt(of.slice(i, i + 2), 36);
			const weight = parseInt(of[i + 2], 36);
			scores.set(page, (scores.get(page) ?? 0) + (part * idf * weight) / (weight + 4 * index.sizes[page]));
		}
	};
	asked.forEach((word, k) => {
		if (Object.hasOwn(index.words, word)) return add(index.words[word], 1);
		if (k < asked.length - 1 || word.length < 3) return;
		for (const longer of Object.keys(index.words)) if (longer.startsWith(word)) add(index.words[longer], 0.5);
	});
	return [...scores].sort((a, b) => b[1] - a[1] || (index.pages[a[0]][0] < index.pages[b[0]][0] ? -1 : 1)).slice(0, 8);
}

function show(index) {
	const found = search(index, input.value);
	list.replaceChildren(...found.map(([page]) => {
		const [path, title, section, summary] = index.pages[page];
		const link = document.createElement("a");
		link.href = root + path + ".html";
		const small = document.createElement("small");
		small.textContent = `${section} · ${summary}`;
		link.append(title, small);
		const item = document.createElement("li");
		item.append(link);
		return item;
	}));
	if (!found.length) {
		const none = document.createElement("li");
		none.textContent = "No page has these words.";
		none.className = "none";
		list.append(none);
	}
	list.hidden = !input.value.trim();
}

input.addEventListener("input", async () => show(await load()));
input.addEventListener("keydown", (e) => {
	const links = list.querySelectorAll("a");
	if (e.key === "Enter" && links.length) links[0].click();
	if (e.key === "ArrowDown" && links.length) { e.preventDefault(); links[0].focus(); }
	if (e.key === "Escape") { input.value = ""; list.hidden = true; }
});
list.addEventListener("keydown", (e) => {
	const links = [...list.querySelectorAll("a")];
	const at = links.indexOf(document.activeElement);
	if (e.key === "ArrowDown") { e.preventDefault(); links[Math.min(at + 1, links.length - 1)]?.focus(); }
	if (e.key === "ArrowUp") { e.preventDefault(); at > 0 ? links[at - 1].focus() : input.focus(); }
	if (e.key === "Escape") { list.hidden = true; input.focus(); }
});
document.addEventListener("keydown", (e) => {
	if (e.key === "/" && !["INPUT", "TEXTAREA"].includes(document.activeElement.tagName)) { e.preventDefault(); input.focus(); }
});
document.addEventListener("click", (e) => { if (!e.target.closest(".search")) list.hidden = true; });
