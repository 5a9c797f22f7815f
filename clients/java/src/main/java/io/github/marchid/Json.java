package io.github.marchid;

import java.util.HashMap;
import java.util.Map;
import java.util.regex.*;

/** Reads JSON as its values by paths: of {"a":[{"b":"c"}]} a.0.b is c. What is empty is "", and null is none. */
final class Json {
    private static final Pattern TOKEN =
        Pattern.compile("\\G\\s*+(\"(?:[^\"\\\\]++|\\\\.)*+\"|[{}\\[\\],:]|[^\\s{}\\[\\],:\"]++)\\s*+");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:u([0-9a-fA-F]{4})|(.))");

    private final Map<String, String> values = new HashMap<>();
    private final Matcher tokens;

    private Json(String text) {
        tokens = TOKEN.matcher(text);
    }

    /** Returns the values of a text. An IllegalArgumentException says that it is no JSON. */
    static Map<String, String> parse(String text) {
        Json json = new Json(text);
        json.value("", json.next());
        need(json.tokens.end() == text.length());
        return json.values;
    }

    /** Returns a value as a number; 0 if there is none. */
    static long number(Map<String, String> in, String path) {
        String digits = in.getOrDefault(path, "");
        return digits.isEmpty() ? 0 : Long.parseLong(digits);
    }

    private static void need(boolean is) {
        if (!is) {
            throw new IllegalArgumentException("no JSON");
        }
    }

    private String next() {
        need(tokens.find());
        return tokens.group(1);
    }

    private void value(String path, String token) {
        boolean object = token.equals("{");
        if (object || token.equals("[")) {
            int n = 0;
            for (String next = next(); !next.equals(object ? "}" : "]"); next = next()) {
                if (n > 0) {
                    need(next.equals(","));
                    next = next();
                }
                String name = String.valueOf(n++);
                if (object) {
                    name = string(next);
                    need(next().equals(":"));
                    next = next();
                }
                value(path.isEmpty() ? name : path + "." + name, next);
            }
            token = n > 0 ? "null" : "";
        } else {
            need(!"}],:".contains(token));
        }
        if (!token.equals("null")) {
            values.put(path, string(token));
        }
    }

    private static String string(String token) {
        return !token.startsWith("\"") ? token : ESCAPE.matcher(token.substring(1, token.length() - 1)).replaceAll(r -> {
            int escape = r.group(1) == null ? "bfnrt".indexOf(r.group(2)) : -1;
            return Matcher.quoteReplacement(r.group(1) != null ? Character.toString(Integer.parseInt(r.group(1), 16))
                : escape < 0 ? r.group(2) : "\b\f\n\r\t".substring(escape, escape + 1));
        });
    }
}
