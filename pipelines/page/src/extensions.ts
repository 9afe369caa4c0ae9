// What a page that is served has besides the views of one that is a file. There it stays empty.
import type { ComponentType } from "preact";

import type { Overview } from "./model";
import type { Store } from "./store";

export interface ViewGiven {
  content: Overview;
  store: Store;
  /** What follows the view's name in the address; empty for nothing. */
  id: string;
  options: URLSearchParams;
}

export interface ServedView {
  /** In the address: `#name`. A name that the page has already replaces its view. */
  name: string;
  /** In the list of views; without one the view is only linked to. */
  title?: string;
  /** Whether this output has it; absent for all. */
  isHere?: (content: Overview) => boolean;
  component: ComponentType<ViewGiven>;
}

export interface SliceSection {
  component: ComponentType<{ content: Overview; store: Store; row: number; id: string }>;
}

/** The views, in the order of the list. */
export const views: ServedView[] = [];
/** What follows in the view of a slice. */
export const sliceSections: SliceSection[] = [];

/** Whether a program serves the page. */
export const isServed = () => views.length > 0;

/** Pages above this one, which the list of views begins with. */
export const above: { title: string; address: string }[] = [];

let reload: () => Promise<void> = async () => {};

/** Reads the document again: it has a new revision. */
export function documentChanged(): Promise<void> {
  return reload();
}

export function onDocumentChange(how: () => Promise<void>): void {
  reload = how;
}
