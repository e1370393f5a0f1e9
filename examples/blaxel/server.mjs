// A server to try things out with: says where it was asked, on port 3000.

import { createServer } from "node:http";

const server = createServer((request, response) => {
  response.setHeader("content-type", "text/plain");
  response.end(`you asked for ${request.url}\n`);
});
server.listen(3000, () => console.log("listening on 3000"));
