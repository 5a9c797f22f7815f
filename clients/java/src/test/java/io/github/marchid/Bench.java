package io.github.marchid;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;

/** Measures the client beside an AtomicLong. Its arguments: an address, a tag to take a million IDs of, another. */
public final class Bench {
    private static final int COUNT = 5_000_000;
    private static volatile long sink;

    public static void main(String[] args) throws InterruptedException {
        MarchClient.Options options = new MarchClient.Options(args[0]);
        options.timeout = Duration.ofMinutes(1); // a busy machine is no fault
        try (MarchClient ids = new MarchClient(options)) { // as a new client begins
            for (int k = 0; k < 1_000_000; k++) {
                ids.next(args[1]);
            }
        }
        options.minStep = 500_000_000;
        try (MarchClient ids = new MarchClient(options)) {
            Tag tag = ids.tag(args[2]);
            tag.warm();
            AtomicLong yardstick = new AtomicLong();
            int cores = Runtime.getRuntime().availableProcessors();
            double[] best = new double[4];
            for (int round = 0; round < 16; round++) {
                best[0] = Math.max(best[0], rate(1, tag::next));
                best[1] = Math.max(best[1], rate(1, yardstick::getAndIncrement));
                best[2] = Math.max(best[2], rate(cores, tag::next));
                best[3] = Math.max(best[3], rate(cores, yardstick::getAndIncrement));
            }
            System.out.printf(Locale.ROOT, "{\"perSecond\":%.0f,\"atomicLong\":%.0f,\"threads\":%d,"
                + "\"perSecondOfAll\":%.0f,\"atomicLongOfAll\":%.0f}%n", best[0], best[1], cores, best[2], best[3]);
        }
    }

    private static double rate(int threads, LongSupplier next) throws InterruptedException {
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            all.add(new Thread(() -> {
                long sum = 0;
                for (int k = 0; k < COUNT / threads; k++) {
                    sum += next.getAsLong();
                }
                sink = sum;
            }));
        }
        long began = System.nanoTime();
        all.forEach(Thread::start);
        for (Thread thread : all) {
            thread.join();
        }
        return COUNT * 1e9 / (System.nanoTime() - began);
    }
}
