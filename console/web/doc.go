// Package web has the console's pages, which show and change the cluster in a browser.
//
// The pages are a view and nothing else. They show and change everything through a
// ConsoleServiceServer, so they cannot differ from the command line. They keep no
// state: a page's address says everything that the page shows. So a reload, another
// console or another browser show the same.
//
//  1. Pages work without JavaScript: links, forms, HTML from templates. Each change has
//     a form of its own: a POST, then a redirect to the thing that was changed. A form
//     that is refused comes back as the user filled it in, with the reason next to the
//     field.
//  2. Everything that changes by itself is in one part of the page, its live part. A
//     page's stream, at /live and the page's address, sends that part whenever it
//     differs, and the browser merges it in (htmx, hx-sse). An event's id is a digest
//     of the event. So a browser that comes back is not sent a part that it has.
//  3. There is no inline script or style: the policy (see headers) forbids both. The
//     numbers of a drawing are attributes of SVG.
//  4. No field that a user fills in is in a live part: the text that a user types must
//     not change meanwhile.
package web
