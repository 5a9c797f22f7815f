package io.github.marchid;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON: an object as a Map, an array as a List, null as null, and all else as a String. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Returns a text's value. An IllegalArgumentException says that it is none. */
    static Object parse(String text) {
        Json json = new Json(text);
        try {
            Object value = json.value();
            if (json.peek() == 0) {
                return value;
            }
        } catch (IndexOutOfBoundsException | StackOverflowError e) {
            // it ends early, or has too many levels
        }
        throw new IllegalArgumentException("no JSON at " + json.at);
    }

    /** Returns a field of an object as an object; an empty one if there is none. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Object in, String field) {
        Object value = in instanceof Map<?, ?> map ? map.get(field) : null;
        return value instanceof Map<?, ?> found ? (Map<String, Object>) found : Map.of();
    }

    /** Returns a field of an object as a number; 0 if there is none. */
    static long number(Map<String, Object> in, String field) {
        return in.get(field) instanceof String digits && !digits.isEmpty() ? Long.parseLong(digits) : 0;
    }

    private char peek() { // the next character that is no space; 0 at the end
        while (at < text.length() && text.charAt(at) <= ' ') {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean skip(char c) {
        boolean is = peek() == c;
        at += is ? 1 : 0;
        return is;
    }

    private void need(char c) {
        if (!skip(c)) {
            throw new IndexOutOfBoundsException();
        }
    }

    private Object value() {
        if (peek() == '"') {
            return string();
        } else if (skip('{')) {
            Map<String, Object> object = new LinkedHashMap<>();
            for (; !skip('}'); skip(',')) {
                String name = string();
                need(':');
                object.put(name, value());
            }
            return object;
        } else if (skip('[')) {
            List<Object> array = new ArrayList<>();
            for (; !skip(']'); skip(',')) {
                array.add(value());
            }
            return array;
        }
        int from = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(from, at);
        if (word.isEmpty()) {
            throw new IndexOutOfBoundsException();
        }
        return word.equals("null") ? null : word;
    }

    private String string() {
        need('"');
        StringBuilder b = new StringBuilder();
        for (;;) {
            char c = text.charAt(at++);
            if (c == '"') {
                return b.toString();
            } else if (c != '\\') {
                b.append(c);
                continue;
            }
            c = text.charAt(at++);
            if (c == 'u') {
                b.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                at += 4;
            } else {
                int escape = "bfnrt".indexOf(c);
                b.append(escape < 0 ? c : "\b\f\n\r\t".charAt(escape));
            }
        }
    }
}
