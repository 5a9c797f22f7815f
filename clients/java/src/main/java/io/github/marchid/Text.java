package io.github.marchid;

/** An ID as a text. The ID is 0 where the tag's IDs have 80 bits, and exist only as texts. */
public record Text(String text, long id) {}
