import type { paths } from "./console.js";

export const layout: paths["/v1/layout:init"]["post"]["requestBody"]["content"]["application/json"] = {
  boundary: "1000", rooms: { a: { lower: "0", upper: "500" } },
};

type Tag = paths["/v1/tags/{name}"]["get"]["responses"][200]["content"]["application/json"];
export const name = (answer: Tag): string | undefined => answer.tag?.name;

// What is not of the tag stands beside its fields.
export const change: paths["/v1/tags/{name}"]["patch"]["requestBody"]["content"]["application/json"] = {
  limit: "5000", confirm: true, ifRevision: "7",
};
