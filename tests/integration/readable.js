// What of a page is hard to read or to operate: names of controls, labels, headers, the order of the keyboard, contrast.
// Source: WCAG 2.2, success criteria 1.3.1, 1.4.3, 2.4.3 and 4.1.2.
const found = [];
const named = (each) => (each.getAttribute("aria-label") || each.textContent || "").trim();
for (const each of document.querySelectorAll("button, a[href]")) if (!named(each)) found.push(["no name", each.outerHTML]);
for (const each of document.querySelectorAll("input, select, textarea")) if (!each.labels.length) found.push(["no label", each.outerHTML]);
for (const each of document.querySelectorAll("th")) if (!each.scope) found.push(["no scope", each.outerHTML]);
for (const each of document.querySelectorAll("[tabindex]")) if (each.tabIndex > 0) found.push(["out of order", each.outerHTML]);
const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
if (new Set(ids).size !== ids.length) found.push(["ids twice", ids.join()]);
const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
const light = (colour) => parts(colour).slice(0, 3).map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4))
  .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (each) => { for (let at = each; at; at = at.parentElement) { const colour = getComputedStyle(at).backgroundColor; if ((parts(colour)[3] ?? 1) > 0) return colour; } return "rgb(255, 255, 255)"; };
for (const each of document.querySelectorAll("body *")) {
  if (![...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) || !each.checkVisibility() || each.disabled) continue;
  const [a, b] = [light(getComputedStyle(each).color), light(behind(each))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push(["contrast", each.outerHTML]);
}
return found;
