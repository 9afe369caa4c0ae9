// Which view is shown, and how: the hash of the address, so that the back button works.
import { useEffect, useState } from "preact/hooks";

import { views as served } from "./extensions";

export type View = string;
const VIEWS: View[] = ["overview", "slices", "slice", "clusters", "shift"];

export interface Route {
  view: View;
  /** A slice's id; empty where a view is about none. */
  id: string;
  options: URLSearchParams;
}

export function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const [name = "", id = ""] = path.split("/", 2);
  const isKnown = VIEWS.includes(name) || served.some((one) => one.name === name);
  const view = isKnown ? name : "overview";
  return { view, id: decoded(id), options: new URLSearchParams(query) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function hashOf(view: View, id: string | undefined = "", options?: URLSearchParams): string {
  const query = options?.toString();
  return `#${view}${id && `/${encodeURIComponent(id)}`}${query ? `?${query}` : ""}`;
}

const listeners = new Set<(route: Route) => void>();
let current: Route | undefined;

/** The views of a served page are known only when all modules are loaded. */
function now(): Route {
  current ??= parsed(location.hash);
  return current;
}

function show(route: Route): void {
  current = route;
  for (const one of listeners) one(route);
}

/** Show another view. What is typed replaces the last entry of the history and adds none. */
export function go(hash: string, replaces = false): void {
  const isOther = parsed(hash).view !== now().view || parsed(hash).id !== now().id;
  try {
    // Where the reader was, for the way back.
    if (!replaces) history.replaceState({ ...places() }, "");
  } catch {
    // As below.
  }
  show(parsed(hash));
  try {
    if (replaces) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
  } catch {
    // A notebook's frame has no address of its own: there the view is kept without one.
  }
  if (isOther) {
    scrollTo(0, 0);
    // The view is drawn in the next frame; one with a better place for the focus has taken it by then.
    const before = document.activeElement;
    requestAnimationFrame(() =>
      setTimeout(() => {
        const isTaken = document.activeElement !== before && document.activeElement !== document.body;
        if (!isTaken) document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true });
      }),
    );
  }
}

/** How far the page and the table in it are scrolled. */
function places(): { page: number; table: number } {
  return { page: scrollY, table: document.querySelector(".virtual .body")?.scrollTop ?? 0 };
}

/** Go where the reader was when this entry of the history was left. */
function restore(state: unknown): void {
  const { page, table } = (state ?? {}) as { page?: number; table?: number };
  if (page === undefined) return;
  requestAnimationFrame(() =>
    setTimeout(() => {
      const body = document.querySelector(".virtual .body");
      if (body) body.scrollTop = table ?? 0;
      scrollTo(0, page);
    }),
  );
}

export function useRoute(): Route {
  const [route, set] = useState(now());
  useEffect(() => {
    const listen = (one: Route) => set(one);
    const read = (event: Event) => {
      show(parsed(location.hash));
      if (event instanceof PopStateEvent) restore(event.state);
    };
    listeners.add(listen);
    // What was shown between the first drawing and now.
    set(now());
    addEventListener("popstate", read);
    addEventListener("hashchange", read);
    return () => {
      listeners.delete(listen);
      removeEventListener("popstate", read);
      removeEventListener("hashchange", read);
    };
  }, []);
  return route;
}
