"use strict";
// Takes the token from the field, or from a link that ends in #token=..., and turns it into a cookie. What follows
// the # of an address is not sent to any server, and is removed from the address at once.

const given = new URLSearchParams(location.hash.slice(1)).get("token");
const said = document.querySelector("[role=alert]"), field = document.getElementById("token");
if (location.hash) history.replaceState(null, "", location.pathname);

async function enter(token) {
  try {
    const answer = await fetch("/session", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
    if (answer.ok) return location.reload();
    said.textContent = "The token is wrong.";
  } catch {
    said.textContent = "The server does not answer, or the token has characters that are not allowed in a token.";
  }
  field.focus();
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(field.value.trim());
});
field.focus();
if (given) enter(given);
