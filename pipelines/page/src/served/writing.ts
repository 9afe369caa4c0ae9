// Writes a revision of the document, and says so once the page shows it.
import { useEffect, useState } from "preact/hooks";

import { documentChanged } from "../extensions";
import { post } from "./api";
import type { Asking } from "./asking";

interface Written {
  revision: number;
  file: string;
  notes: string[];
  slices: string[];
}

// The page is drawn anew when a revision has come: what was done is said after that.
let done = "";

/** Writes a revision, then shows it. */
export function write(asking: Asking, edit: object, said: string, next?: (written: Written) => void): void {
  asking.ask(async () => {
    const written = await post<Written>("edits", edit);
    done = [`${said} Written to ${written.file}.`, ...written.notes].join(" ");
    await documentChanged();
    next?.(written);
  });
}

export function useDone(): string {
  const [said] = useState(done);
  useEffect(() => {
    done = "";
  }, []);
  return said;
}
