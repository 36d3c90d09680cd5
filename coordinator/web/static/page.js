// Refreshes the page every 2 s: replaces the changed parts by the server's new rendering.
"use strict";

const PERIOD = 2000; // milliseconds

function holdsSelection(part) {
  const selection = document.getSelection();
  return selection.type === "Range" && part.contains(selection.anchorNode);
}

function replace(fresh) {
  for (const part of fresh.querySelectorAll("[data-part]")) {
    const old = document.getElementById(part.id);
    if (old === null) document.getElementById("live").append(part);
    else if (old.innerHTML !== part.innerHTML && !holdsSelection(old)) old.innerHTML = part.innerHTML;
  }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("live", { cache: "no-store", signal: AbortSignal.timeout(2 * PERIOD) });
    if (!answer.ok) throw new Error(answer.status);
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.body.classList.remove("offline");
  } catch {
    document.body.classList.add("offline");
  }
}

async function keepFresh() {
  await refresh();
  setTimeout(keepFresh, PERIOD);
}

setTimeout(keepFresh, PERIOD);
document.addEventListener("visibilitychange", refresh);
