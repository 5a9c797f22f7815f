import com.sun.net.httpserver.HttpServer;
import io.github.marchid.MarchClient;
import io.github.marchid.MarchException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.concurrent.Executors;

/** An HTTP service whose orders have IDs of March: java Service.java PORT ROOM... */
public final class Service {
    public static void main(String[] args) throws IOException {
        MarchClient ids = new MarchClient(new MarchClient.Options(Arrays.copyOfRange(args, 1, args.length)));
        ids.tag("order").warm();
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 0);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/orders", exchange -> {
            try {
                String answer = "{\"order\":\"" + ids.next("order") + "\"}"; // a text: JavaScript rounds above 2^53
                exchange.sendResponseHeaders(201, answer.length());
                exchange.getResponseBody().write(answer.getBytes());
            } catch (MarchException e) {
                exchange.sendResponseHeaders(e.temporary() ? 503 : 500, -1);
            }
            exchange.close();
        });
        server.start();
    }
}
