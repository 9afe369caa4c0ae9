import * as format from "./format";

/** A text of conditions, long values cut in the middle; the whole of it is its title. */
export function Short({ text }: { text: string }) {
  const short = format.cut(text);
  return short === text ? <>{text}</> : <span title={text}>{short}</span>;
}
