package io.github.marchid;

import java.util.HashMap;
import java.util.Map;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads JSON as its values by paths: of {"a":[{"b":"c"}]} a.0.b is c. What is empty is "", and null is none. */
final class Json {
    private static final Pattern TOKEN =
        Pattern.compile("\\s*+(\"(?:[^\"\\\\]++|\\\\.)*+\"|[{}\\[\\],:]|[^\\s{}\\[\\],:\"]++)\\s*+");
    private static final Pattern ESCAPE = Pattern.compile("\\\\(?:u([0-9a-fA-F]{4})|(.))");

    private final Map<String, String> values = new HashMap<>();
    private final Matcher tokens;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
        tokens = TOKEN.matcher(text);
    }

    /** Returns the values of a text. An IllegalArgumentException says that it is no JSON. */
    static Map<String, String> parse(String text) {
        Json json = new Json(text);
        try {
            json.value("", json.next());
        } catch (StackOverflowError e) { // it has too many levels
            json.at = -1;
        }
        json.need(json.at == text.length());
        return json.values;
    }

    /** Returns a value as a number; 0 if there is none. */
    static long number(Map<String, String> in, String path) {
        String digits = in.getOrDefault(path, "");
        return digits.isEmpty() ? 0 : Long.parseLong(digits);
    }

    private void need(boolean is) {
        if (!is) {
            throw new IllegalArgumentException("no JSON at " + at);
        }
    }

    private String next() {
        need(tokens.region(at, text.length()).lookingAt());
        at = tokens.end();
        return tokens.group(1);
    }

    private void value(String path, String first) {
        boolean object = first.equals("{");
        if (!object && !first.equals("[")) {
            need(!"}],:".contains(first));
            if (!first.equals("null")) {
                values.put(path, string(first));
            }
            return;
        }
        String end = object ? "}" : "]";
        String token = next();
        if (token.equals(end)) {
            values.put(path, "");
            return;
        }
        for (int n = 0;; n++, token = next()) {
            String name = object ? string(token) : String.valueOf(n);
            if (object) {
                need(next().equals(":"));
                token = next();
            }
            value(path.isEmpty() ? name : path + "." + name, token);
            token = next();
            if (token.equals(end)) {
                return;
            }
            need(token.equals(","));
        }
    }

    private static String string(String token) {
        return token.startsWith("\"") ? ESCAPE.matcher(token.substring(1, token.length() - 1)).replaceAll(Json::escaped)
            : token;
    }

    private static String escaped(MatchResult r) {
        int escape = r.group(1) == null ? "bfnrt".indexOf(r.group(2)) : -1;
        char c = r.group(1) != null ? (char) Integer.parseInt(r.group(1), 16)
            : escape < 0 ? r.group(2).charAt(0) : "\b\f\n\r\t".charAt(escape);
        return Matcher.quoteReplacement(String.valueOf(c));
    }
}
