// Every picture of a page is a link to itself, at its full size: on a phone it is read there.
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a");
    link.href = picture.src;
    link.title = "full size";
    picture.replaceWith(link);
    link.append(picture);
  }
});
