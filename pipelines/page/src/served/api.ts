// What the page asks the program that serves it. Paths are below the page's own address.

const TOKEN = "slicebeam-token";

/** The program's refusal, a sentence for the reader. */
export class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** Returns the address of a path below the page, or of one that begins at the root. */
function address(path: string): string {
  if (path.startsWith("/")) return location.origin + path;
  return new URL(`api/${path}`, location.origin + location.pathname.replace(/[^/]*$/, "")).href;
}

async function answered(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    const headers = { ...init.headers, "x-slicebeam-token": sessionStorage.getItem(TOKEN) ?? "" };
    response = await fetch(address(path), { ...init, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refusal(0, "The program that serves this page does not answer: start slicebeam serve again.");
  }
  if (response.ok) return response;
  const said = (await response.json().catch(() => ({}))) as { error?: string };
  throw new Refusal(response.status, said.error ?? `${response.status} ${response.statusText}`);
}

/** Asks for something. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await answered(path, signal ? { signal } : {})).json()) as T;
}

function sent(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return answered(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    ...(signal ? { signal } : {}),
  });
}

/** Sends an object, and returns the answer. */
export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await (await sent(path, body, signal)).json()) as T;
}

/** Sends an object, and returns the text that is answered. */
export async function postForText(path: string, body: unknown): Promise<string> {
  return (await sent(path, body)).text();
}

/** Sends a file to a path that begins with `upload/`. */
export async function upload<T>(path: string, file: Blob, signal?: AbortSignal): Promise<T> {
  const response = await answered(path, {
    method: "POST",
    headers: { "content-type": "application/octet-stream" },
    body: file,
    ...(signal ? { signal } : {}),
  });
  return (await response.json()) as T;
}

/** Gets the token of this tab for the code of the address, and takes that out of the address. */
export async function begin(): Promise<void> {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  const { token } = await post<{ token: string }>("/api/session", { code });
  sessionStorage.setItem(TOKEN, token);
}
