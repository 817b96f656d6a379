import java.lang.annotation.Annotation;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.fault.FaultHandlerException;

import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;

/**
 * Runs a consumer test of Kafka against a cluster that runs already: {@code OutsideCluster HOST:PORT CLASS METHOD}.
 *
 * Kafka's tests get their cluster as a {@code ClusterInstance}, and usually start one in their JVM. This one is
 * outside, so a test that stops a broker or looks into one gets an {@code UnsupportedOperationException}. Topics and
 * groups of earlier tests are deleted first, because the tests share their names.
 */
public final class OutsideCluster implements ClusterInstance {
    private static final long MOST_MS = 15_000;

    private final String address;
    private final ClusterConfig config = ClusterConfig.defaultBuilder().setTypes(Set.of(Type.KRAFT)).build();

    private OutsideCluster(String address) {
        this.address = address;
    }

    public static void main(String[] given) throws Exception {
        OutsideCluster cluster = new OutsideCluster(given[0]);
        Class<?> of = Class.forName("org.apache.kafka.clients.consumer." + given[1]);
        cluster.clear();
        var constructor = of.getDeclaredConstructor(ClusterInstance.class);
        constructor.setAccessible(true);
        Object test = constructor.newInstance(cluster);
        Method method = of.getDeclaredMethod(given[2]);
        int status = 0;
        try {
            call(test, annotated(of, "BeforeEach"));
            call(test, List.of(method));
        } catch (InvocationTargetException error) {
            error.getCause().printStackTrace();
            status = 1;
        }
        System.out.println((status == 0 ? "PASSED " : "FAILED ") + given[1] + "." + given[2]);
        System.exit(status);  // some tests leave threads
    }

    private static List<Method> annotated(Class<?> of, String name) {
        List<Method> found = new ArrayList<>();
        for (Method method : of.getDeclaredMethods()) {
            for (Annotation annotation : method.getAnnotations()) {
                if (annotation.annotationType().getSimpleName().equals(name)) {
                    found.add(method);
                }
            }
        }
        return found;
    }

    private static void call(Object test, List<Method> methods) throws Exception {
        for (Method method : methods) {
            method.setAccessible(true);
            method.invoke(test);
        }
    }

    private void clear() throws Exception {
        try (Admin admin = admin()) {
            admin.deleteTopics(admin.listTopics().names().get()).all().get();
            Set<String> groups = admin.listGroups().all().get().stream()
                .map(GroupListing::groupId).collect(Collectors.toSet());
            for (String group : groups) {
                try {
                    admin.deleteConsumerGroups(Set.of(group)).all().get();
                } catch (ExecutionException error) {
                    System.err.println("group " + group + " stays: " + error.getCause());
                }
            }
        }
    }

    @Override
    public void createTopic(String name, int partitions, short replicas, Map<String, String> configs)
            throws InterruptedException {
        try (Admin admin = admin()) {
            // Like Kafka's own, which does not look at the answer: some tests create a topic that is there.
            admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs)));
            waitTopicCreation(name, partitions);
        }
    }

    @Override
    public void waitTopicCreation(String name, int partitions) throws InterruptedException {
        long until = System.currentTimeMillis() + MOST_MS;
        try (Admin admin = admin()) {
            while (System.currentTimeMillis() < until) {
                try {
                    var found = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
                    if (found.partitions().size() == partitions) {
                        return;
                    }
                } catch (ExecutionException error) {
                    // not there yet
                }
                Thread.sleep(50);
            }
        }
        throw new IllegalStateException("topic " + name + " is not there after " + MOST_MS + " ms");
    }

    @Override
    public Set<GroupProtocol> supportedGroupProtocols() {
        return Set.of(GroupProtocol.CLASSIC);
    }

    @Override
    public String bootstrapServers() {
        return address;
    }

    @Override
    public ClusterConfig config() {
        return config;
    }

    @Override
    public Type type() {
        return Type.KRAFT;
    }

    @Override
    public ListenerName clientListener() {
        return config.brokerListenerName();
    }

    @Override
    public String clusterId() {
        try (Admin admin = admin()) {
            return admin.describeCluster().clusterId().get();
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public void start() { }

    @Override
    public boolean started() {
        return true;
    }

    @Override
    public boolean stopped() {
        return false;
    }

    @Override
    public void waitForReadyBrokers() { }

    @Override
    public Optional<FaultHandlerException> firstFatalException() {
        return Optional.empty();
    }

    @Override
    public Optional<FaultHandlerException> firstNonFatalException() {
        return Optional.empty();
    }

    @Override
    public Map<Integer, KafkaBroker> brokers() {
        throw outside();
    }

    @Override
    public Map<Integer, ControllerServer> controllers() {
        throw outside();
    }

    @Override
    public Set<Integer> controllerIds() {
        throw outside();
    }

    @Override
    public ListenerName controllerListenerName() {
        throw outside();
    }

    @Override
    public String bootstrapControllers() {
        throw outside();
    }

    @Override
    public void stop() {
        throw outside();
    }

    @Override
    public void shutdownBroker(int id) {
        throw outside();
    }

    @Override
    public void startBroker(int id) {
        throw outside();
    }

    private static UnsupportedOperationException outside() {
        return new UnsupportedOperationException("the brokers run outside of this JVM");
    }
}
