// Visits pages in a real Chromium. Reads {url, pages, widths, chromium, shots} from the standard input and writes, as
// JSON, what it saw: scripts that ran though nobody wrote them, violations of the content security policy, serious
// findings of axe-core, and pages wider than their window.
import { readFileSync } from "node:fs";
import axe from "axe-core";
import puppeteer from "puppeteer-core";

const { url, pages, widths, chromium, shots } = JSON.parse(readFileSync(0, "utf8"));
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-gpu"] });
const seen = { executed: [], violations: [], serious: [], wide: [], visited: 0 };
const tab = await browser.newPage();
await tab.setBypassCSP(false);
tab.on("dialog", async (dialog) => {
  seen.executed.push(`${tab.url()}: ${dialog.message()}`);
  await dialog.dismiss();
});
tab.on("console", (message) => {
  if (/Content Security Policy/.test(message.text())) seen.violations.push(`${tab.url()}: ${message.text()}`);
});
await tab.evaluateOnNewDocument(() => {
  window.hostile = [];
  document.addEventListener("securitypolicyviolation", (event) => window.hostile.push(`csp ${event.violatedDirective}`));
});
for (const page of pages) {
  for (const scheme of ["light", "dark"]) {
    await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    for (const width of scheme === "light" ? widths : widths.slice(0, 1)) {
      await tab.setViewport({ width, height: 900 });
      await tab.goto(url + page, { waitUntil: "load" });
      seen.visited += 1;
      const overflow = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (overflow > 0) seen.wide.push(`${page} at ${width}: ${overflow} px`);
      if (shots) await tab.screenshot({ path: `${shots}/${seen.visited}-${scheme}-${width}.png`, fullPage: true });
      const marked = await tab.evaluate(() => window.hostile);
      for (const one of marked) (one.startsWith("csp") ? seen.violations : seen.executed).push(`${page}: ${one}`);
    }
    // The protocol of the debugger runs axe-core beside the page's policy, as an extension of a browser would.
    await tab.evaluate(axe.source);
    const found = await tab.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const one of found.violations.filter((one) => ["serious", "critical"].includes(one.impact)))
      seen.serious.push(`${page} ${scheme}: ${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
  }
}
await browser.close();
console.log(JSON.stringify(seen));
