// A request at a time: what runs, and what was refused.
import { useEffect, useRef, useState } from "preact/hooks";

export interface Asking {
  isBusy: boolean;
  error: string;
  /** Runs a request unless one is under way; its refusal is in `error`. */
  ask: (request: (signal: AbortSignal) => Promise<void>) => void;
}

export function useAsking(): Asking {
  const [isBusy, run] = useState(false);
  const [error, fail] = useState("");
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);
  const ask = (request: (signal: AbortSignal) => Promise<void>) => {
    // Not the state: a second key may come before the page is drawn anew.
    if (controller.current) return;
    const own = new AbortController();
    controller.current = own;
    run(true);
    fail("");
    void request(own.signal)
      .catch((problem: unknown) => {
        if (!own.signal.aborted) fail(problem instanceof Error ? problem.message : String(problem));
      })
      .finally(() => {
        controller.current = null;
        if (!own.signal.aborted) run(false);
      });
  };
  return { isBusy, error, ask };
}
