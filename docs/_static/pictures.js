// Every picture of a page links to its full size. Wide pictures are marked, so that they scroll sideways on a phone.
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest(".sphx-glr-thumbcontainer")) continue;
    let link = picture.closest("a");
    if (!link) {
      link = document.createElement("a");
      link.href = picture.src;
      link.title = "full size";
      picture.replaceWith(link);
      link.append(picture);
    }
    const mark = () => link.classList.toggle("wide-picture", picture.naturalWidth > 1000);
    picture.addEventListener("load", mark);
    if (picture.complete) mark();
  }
});
