// The page: the views, and the links between them.
import { useEffect, useState } from "preact/hooks";

import { Clusters } from "./clusters";
import { Lattice } from "./lattice";
import { Link } from "./link";
import type { Overview as Content } from "./model";
import { Overview } from "./overview";
import { hashOf, type Route, useRoute, type View } from "./route";
import { ShiftView } from "./shift";
import { SliceView } from "./slice";
import { Slices } from "./slices";
import { type Store, unpacked } from "./store";

const NAMES: Record<string, string> = { slices: "Slices", clusters: "Clusters", shift: "Shift" };

const WIDE: View[] = ["slices", "lattice", "shift"];

export function App({ content, tables }: { content: Content; tables: string }) {
  const route = useRoute();
  const [store, hold] = useState<Store | null>(null);
  const [failed, say] = useState("");
  useEffect(() => {
    // The first view is painted before anything is unpacked.
    requestAnimationFrame(() =>
      setTimeout(() => void unpacked(tables).then(hold, (error: unknown) => say(String(error)))),
    );
  }, []);
  useEffect(() => {
    document.documentElement.dataset["ready"] = store ? "yes" : "";
  }, [store]);
  return (
    <>
      {content.views.length > 0 && (
        <nav aria-label="Views" class={WIDE.includes(route.view) ? "wide" : ""}>
          <Link to={hashOf("overview")} current={route.view === "overview"}>
            Overview
          </Link>
          {content.views.map((view) => (
            <Link key={view} to={hashOf(view as View)} current={route.view === view}>
              {NAMES[view]}
            </Link>
          ))}
        </nav>
      )}
      {route.view === "overview" ? (
        <Overview content={content} />
      ) : store ? (
        <Shown route={route} content={content} store={store} />
      ) : (
        <main>
          <p role="status">
            {failed
              ? `The slices could not be unpacked: ${failed}. A browser of 2023 or later is needed.`
              : "The slices are being unpacked."}
          </p>
        </main>
      )}
    </>
  );
}

function Shown({ route, content, store }: { route: Route; content: Content; store: Store }) {
  switch (route.view) {
    case "slice":
      return <SliceView content={content} store={store} id={route.id} />;
    case "lattice":
      return <Lattice content={content} store={store} id={route.id} />;
    case "clusters":
      return <Clusters content={content} store={store} />;
    case "shift":
      return <ShiftView content={content} store={store} />;
    default:
      return <Slices content={content} store={store} options={route.options} />;
  }
}
