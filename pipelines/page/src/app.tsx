// The page: the views, and the links between them.
import { useEffect, useState } from "preact/hooks";

import { Clusters } from "./clusters";
import { above, views as served } from "./extensions";
import { Header } from "./header";
import { Link } from "./link";
import type { Overview as Content } from "./model";
import { Overview } from "./overview";
import { hashOf, type Route, useRoute, type View } from "./route";
import { ShiftView } from "./shift";
import { SliceView } from "./slice";
import { Slices } from "./slices";
import { type Store, unpacked } from "./store";

const NAMES: Record<string, string> = { slices: "Slices", clusters: "Clusters", shift: "Shift" };

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
      <Header content={content}>
        {above.map(({ title, address }) => (
          <a key={address} href={address}>
            {title}
          </a>
        ))}
        <Link to={hashOf("overview")} current={route.view === "overview"}>
          Overview
        </Link>
        {listed(content).map(({ view, title }) => (
          <Link key={view} to={hashOf(view)} current={route.view === view}>
            {title}
          </Link>
        ))}
      </Header>
      {route.view === "overview" ? (
        <Overview content={content} store={store} />
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

/** The views that the reader may choose from; those of a served page come last. */
function listed(content: Content): { view: View; title: string }[] {
  const own = content.views.map((view) => ({ view, title: NAMES[view] ?? view }));
  const more = served.flatMap(({ name, title, isHere }) =>
    title && !own.some((one) => one.view === name) && (isHere?.(content) ?? true) ? [{ view: name, title }] : [],
  );
  return [...own, ...more];
}

function Shown({ route, content, store }: { route: Route; content: Content; store: Store }) {
  const Own = served.find((one) => one.name === route.view)?.component;
  if (Own) return <Own content={content} store={store} id={route.id} options={route.options} />;
  switch (route.view) {
    case "slice":
      return <SliceView content={content} store={store} id={route.id} />;
    case "clusters":
      return <Clusters content={content} store={store} />;
    case "shift":
      return <ShiftView content={content} store={store} />;
    default:
      return <Slices content={content} store={store} options={route.options} />;
  }
}
