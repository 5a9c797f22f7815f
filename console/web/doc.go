// Package web is the console's page: the cluster in a browser, to look at and
// to change.
//
// It is a face and nothing else. All that it shows and does goes through a
// ConsoleServiceServer, so it cannot differ from the command line, and it keeps
// no state: what a page shows is in its address, so that a reload, another
// console or another browser show the same.
//
//  1. Pages are whole without JavaScript: links, forms, HTML from templates.
//     A change is a form of its own: POST, then a redirect to what it changed; a
//     form that was refused comes back as it was filled in, with the reason next
//     to the field.
//  2. What changes by itself is in one part of the page, its live part. The
//     stream of a page, at /live and its address, sends that part whenever it
//     differs, and the browser merges it in (htmx, hx-sse). An event's id is a
//     digest of what it holds, so a browser that comes back is sent nothing that
//     it has.
//  3. No inline script or style: the policy (see headers) forbids both. Where a
//     drawing needs numbers they are attributes of SVG.
//  4. Nothing that one fills in is in a live part: what somebody types is not
//     changed under their hands.
package web
