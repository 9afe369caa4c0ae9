// A slice and its neighbours, fetched when it is looked at: the page holds only those of the document.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { views, type ViewGiven } from "../extensions";
import { SliceView } from "../slice";
import { type Store, unpacked } from "../store";
import { post, Refusal } from "./api";
import { useIndex, Waiting } from "./index_status";

type Shown = ComponentType<Omit<ViewGiven, "options">>;

function near(Own: Shown, title: string) {
  return ({ content, store, id }: ViewGiven) => {
    const status = useIndex();
    const [around, hold] = useState<{ id: string; store: Store } | null>(null);
    const [failed, say] = useState("");
    // Without the index, what the document says of the slice is shown.
    const isOver = status !== null && status.state !== "building";
    useEffect(() => {
      if (!isOver) return;
      const stop = new AbortController();
      say("");
      post<{ tables: string }>("slice", { slice_id: id }, stop.signal)
        .then(({ tables }) => unpacked(tables))
        .then(
          (now) => {
            if (!stop.signal.aborted) hold({ id, store: now });
          },
          (error: unknown) => {
            if (stop.signal.aborted) return;
            if (store.rowOf(id) !== undefined || (error instanceof Refusal && [404, 422].includes(error.status)))
              hold({ id, store });
            else say(error instanceof Error ? error.message : String(error));
          },
        );
      return () => stop.abort();
    }, [id, isOver, store]);
    if (failed) return <Waiting title={title} status={{ state: "failed", error: failed }} />;
    if (around?.id !== id) return <Waiting title={title} status={status?.state === "building" ? status : null} />;
    return <Own content={content} store={around.store} id={id} />;
  };
}

views.push({ name: "slice", component: near(SliceView, "Slice") });
