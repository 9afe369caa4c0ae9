// Whether all tested slices can be asked for yet.
import { useEffect, useState } from "preact/hooks";

import * as format from "../format";
import { get } from "./api";

export interface IndexStatus {
  state: "building" | "ready" | "failed";
  seconds?: number;
  error?: string;
}

const EVERY = 500;

export function useIndex(): IndexStatus | null {
  const [status, hold] = useState<IndexStatus | null>(null);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const ask = async () => {
      let now: IndexStatus;
      try {
        now = await get<IndexStatus>("index");
      } catch (error) {
        now = { state: "failed", error: error instanceof Error ? error.message : String(error) };
      }
      if (isOver) return;
      hold(now);
      if (now.state === "building") timer = setTimeout(() => void ask(), EVERY);
    };
    void ask();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  return status;
}

/** What is said in the place of a view that needs the index. */
export function Waiting({ title, status }: { title: string; status: IndexStatus | null }) {
  return (
    <main>
      <h1 class="view" tabIndex={-1}>{title}</h1>
      {status?.state === "failed" ? (
        <p role="alert">{status.error}</p>
      ) : (
        <p role="status">
          {status
            ? `The index of all tested slices is being built, once for this run: ${format.count(Math.round(status.seconds ?? 0))} s so far.`
            : "The slices are being looked up."}
        </p>
      )}
    </main>
  );
}
